#include "core/dtype.h"

#include <array>

#include "core/error.h"

namespace shardplan {
namespace {

struct DTypeRow {
  DType dtype;
  std::int64_t bytes;
  bool floating;
  std::string_view name;
  std::string_view torch;
  std::string_view safetensors;
};

// In the order of the enumeration: row_of indexes it.
constexpr std::array kRows = {
    DTypeRow{DType::F32, 4, true, "fp32", "float32", "F32"},   DTypeRow{DType::BF16, 2, true, "bf16", "bfloat16", "BF16"},
    DTypeRow{DType::F16, 2, true, "fp16", "float16", "F16"},   DTypeRow{DType::F64, 8, true, "fp64", "float64", "F64"},
    DTypeRow{DType::I64, 8, false, "int64", "int64", "I64"},   DTypeRow{DType::I32, 4, false, "int32", "int32", "I32"},
    DTypeRow{DType::U64, 8, false, "uint64", "uint64", "U64"}, DTypeRow{DType::U8, 1, false, "uint8", "uint8", "U8"},
    DTypeRow{DType::Bool, 1, false, "bool", "bool", "BOOL"},
};

const DTypeRow& row_of(DType dtype) {
  const auto position = static_cast<std::size_t>(dtype);
  CHECK(position < kRows.size(), "a dtype is one of the closed list");
  return kRows[position];
}

std::optional<DType> find(std::string_view DTypeRow::*spelling, std::string_view name) {
  for (const DTypeRow& row : kRows) {
    if (row.*spelling == name) return row.dtype;
  }
  return std::nullopt;
}

}  // namespace

std::int64_t element_bytes(DType dtype) { return row_of(dtype).bytes; }
bool is_floating(DType dtype) { return row_of(dtype).floating; }

std::string_view dtype_name(DType dtype) { return row_of(dtype).name; }
std::optional<DType> dtype_from_name(std::string_view name) { return find(&DTypeRow::name, name); }

std::string_view torch_name(DType dtype) { return row_of(dtype).torch; }
std::optional<DType> dtype_from_torch_name(std::string_view name) {
  constexpr std::string_view kPrefix = "torch.";
  if (name.starts_with(kPrefix)) name.remove_prefix(kPrefix.size());
  return find(&DTypeRow::torch, name);
}

std::string_view safetensors_name(DType dtype) { return row_of(dtype).safetensors; }
std::optional<DType> dtype_from_safetensors_name(std::string_view name) { return find(&DTypeRow::safetensors, name); }

}  // namespace shardplan
