// The header of a safetensors file: what lies where, checked before anyone trusts it.
//
// A file is: u64 little-endian header length, that many bytes of JSON, one buffer of tensor data. The reader rejects a header
// longer than 100,000,000 bytes or than the file, anything that is not {name: {dtype, shape, data_offsets}}, names listed twice,
// spans that are not elements * width (with overflow check), gaps, overlaps, and data that does not end where the file ends. Leaves
// out: dtypes narrower than a byte are checked by their size, but no reader of values exists for them. Units: bytes; offsets of
// StoredTensor count from the start of the file. Errors: ConfigError naming file and tensor. Source: format description of the
// safetensors project; docs/execute.md says what is read and written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"

namespace shardplan {

struct StoredTensor {
  std::string name;
  std::string dtype_word;      // "F32", "BF16", "F8_E4M3", ...
  std::optional<DType> dtype;  // unset for words that core/dtype.h does not hold
  std::vector<std::int64_t> shape;
  std::int64_t begin_bytes = 0;  // half-open, from the start of the file
  std::int64_t end_bytes = 0;
  std::int32_t file = 0;  // which file of the model

  [[nodiscard]] std::int64_t numel() const {
    std::int64_t n = 1;
    for (const std::int64_t d : shape) n *= d;
    return n;
  }
};

struct SafetensorsHeader {
  std::vector<StoredTensor> tensors;  // by position in the file
  std::map<std::string, std::string> metadata;
  std::int64_t data_begin_bytes = 0;
};

inline constexpr std::int64_t kLongestHeaderBytes = 100'000'000;

// `content` holds the whole file, or at least its header; `file_bytes` is the length of the file.
[[nodiscard]] SafetensorsHeader header_from_bytes(std::span<const std::byte> content, std::int64_t file_bytes,
                                                  const std::string& file);

// A tensor to be written.
struct TensorDeclaration {
  std::string name;
  DType dtype = DType::F32;
  std::vector<std::int64_t> shape;
};

// Header text (length prefix included, padded so that data starts at a multiple of 8) and the places: wider dtypes first, then by
// name.
struct HeaderLayout {
  std::string prefix;                 // to be written at byte 0
  std::vector<StoredTensor> tensors;  // in file order
  std::int64_t file_bytes = 0;
};
[[nodiscard]] HeaderLayout layout_header(std::vector<TensorDeclaration> tensors,
                                         const std::map<std::string, std::string>& metadata);

[[nodiscard]] std::string text_from_shape(const std::vector<std::int64_t>& shape);  // "[2, 3]"

}  // namespace shardplan
