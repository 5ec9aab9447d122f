#include "executor/random_init.h"

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/error.h"
#include "core/write_file.h"
#include "executor/config_dtype.h"
#include "executor/seeded_words.h"
#include "planner/graph/parameter_table.h"

namespace shardplan {
namespace {

constexpr std::int64_t kPieceElements = 1 << 20;

template <class T>
void write_values(ModelWriter& writer, const Parameter& parameter, const RandomInit& init) {
  const SeededWords words(init.seed, parameter.name);
  const bool is_norm = parameter.name.ends_with("norm.weight");
  const double mean = is_norm ? 1.0 : 0.0, std_deviation = is_norm ? 0.1 : init.std_deviation;
  std::vector<T> piece;
  for (std::int64_t done = 0; done < parameter.numel(); done += kPieceElements) {
    const std::int64_t n = std::min(kPieceElements, parameter.numel() - done);
    piece.resize(static_cast<std::size_t>(n));
    for (std::int64_t i = 0; i < n; ++i) {
      piece[static_cast<std::size_t>(i)] =
          static_cast<T>(static_cast<float>(mean + std_deviation * words.normal(static_cast<std::uint64_t>(done + i))));
    }
    writer.write(parameter.name, done * static_cast<std::int64_t>(sizeof(T)), std::as_bytes(std::span(piece)));
  }
}

}  // namespace

void write_random_model(const ModelSpec& model, const std::filesystem::path& directory, const RandomInit& init) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) throw IoError(fmt::format("cannot create directory: {}", error.message()), directory.string(), "name another --out");
  const ParameterTable table = parameter_table(model);
  std::vector<TensorDeclaration> tensors;
  for (const Parameter& p : table.parameters) tensors.push_back({.name = p.name, .dtype = init.dtype, .shape = p.shape});
  ModelWriter writer(directory, tensors, init.max_file_bytes);
  for (const Parameter& p : table.parameters) {
    switch (init.dtype) {
      case DType::F32:
        write_values<float>(writer, p, init);
        break;
      case DType::BF16:
        write_values<c10::BFloat16>(writer, p, init);
        break;
      case DType::F16:
        write_values<c10::Half>(writer, p, init);
        break;
      case DType::F64:
      case DType::I64:
      case DType::I32:
      case DType::U64:
      case DType::U8:
      case DType::Bool:
        throw UsageError(fmt::format("a checkpoint cannot be made in {}", dtype_name(init.dtype)), "--dtype", "fp32, bf16 or fp16");
    }
  }
  writer.finish();
  write_file_whole(directory / "config.json", config_with_dtype(model.config, init.dtype).dump(2) + "\n");
}

}  // namespace shardplan
