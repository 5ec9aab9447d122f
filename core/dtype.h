// Element types: width in bytes and the three spellings that users and files have for each.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace shardplan {

enum class DType : std::uint8_t { F32, BF16, F16, F64, I64, I32, U64, U8, Bool };

[[nodiscard]] std::int64_t element_bytes(DType dtype);

// "fp32", "bf16", "fp16", "fp64", "int64", "int32", "uint64", "uint8", "bool": the words of flags and plan files.
[[nodiscard]] std::string_view dtype_name(DType dtype);
[[nodiscard]] std::optional<DType> dtype_from_name(std::string_view name);

// "float32", "bfloat16", ...: Hugging Face configs, with or without a leading "torch.".
[[nodiscard]] std::string_view torch_name(DType dtype);
[[nodiscard]] std::optional<DType> dtype_from_torch_name(std::string_view name);

// "F32", "BF16", ...: safetensors headers.
[[nodiscard]] std::string_view safetensors_name(DType dtype);
[[nodiscard]] std::optional<DType> dtype_from_safetensors_name(std::string_view name);

[[nodiscard]] bool is_floating(DType dtype);

}  // namespace shardplan
