#include "executor/safetensors_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "core/units.h"

namespace shardplan {
namespace {

struct StoredWidth {
  std::string_view word;
  std::int64_t bits;
};
// Every dtype word of the format, with its width.
constexpr std::array<StoredWidth, 23> kStoredWidths = {{
    {"BOOL", 8},        {"U8", 8},          {"I8", 8},    {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F8_E8M0", 8},
    {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"F4", 4},    {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U16", 16},
    {"I16", 16},        {"F16", 16},        {"BF16", 16}, {"U32", 32},    {"I32", 32},    {"F32", 32},
    {"U64", 64},        {"I64", 64},        {"F64", 64},  {"C64", 64},    {"C128", 128},
}};

std::optional<std::int64_t> bits_of(std::string_view word) {
  for (const StoredWidth& row : kStoredWidths) {
    if (row.word == word) return row.bits;
  }
  return std::nullopt;
}

constexpr const char* kDamaged = "the file is damaged or was not written by a safetensors library: copy or convert it again";
constexpr const char* kCopyAgain = "the copy or download did not finish: fetch the file again";

std::string at_tensor(const std::string& file, const std::string& tensor) { return fmt::format("{}, tensor '{}'", file, tensor); }

// Follows the parser's events through the one structure that a header may have.
class HeaderEvents : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeaderEvents(SafetensorsHeader& header, std::string file) : header_(header), file_(std::move(file)) {}

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a boolean"); }
  bool number_float(number_float_t, const string_t& text) override { return unexpected(fmt::format("the number {}", text)); }
  bool number_integer(number_integer_t value) override { return unexpected(fmt::format("the number {}", value)); }
  bool binary(binary_t&) override { return unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ != Place::Shape && place_ != Place::Offsets) return unexpected(fmt::format("the number {}", value));
    if (value > static_cast<number_unsigned_t>(INT64_MAX)) fail(fmt::format("the number {} is beyond what a file can hold", value));
    (place_ == Place::Shape ? tensor_.shape : offsets_).push_back(static_cast<std::int64_t>(value));
    return true;
  }

  bool string(string_t& value) override {
    if (place_ == Place::Metadata) {
      header_.metadata[key_] = value;
      return true;
    }
    if (place_ != Place::Tensor || key_ != "dtype") return unexpected(fmt::format("the text '{}'", value));
    tensor_.dtype_word = value;
    return true;
  }

  bool key(string_t& name) override {
    if (place_ == Place::Root) {
      tensor_ = StoredTensor{.name = name};
      offsets_.clear();
      seen_.clear();
      if (!names_.insert(name).second) fail("name is listed twice in the header");
      return true;
    }
    key_ = name;
    if (!seen_.insert(name).second) fail(fmt::format("key '{}' stands twice", name));
    if (place_ == Place::Tensor && name != "dtype" && name != "shape" && name != "data_offsets")
      fail(fmt::format("unknown key '{}'", name));
    return true;
  }

  bool start_object(std::size_t) override {
    if (place_ == Place::Outside)
      place_ = Place::Root;
    else if (place_ == Place::Root)
      place_ = tensor_.name == "__metadata__" ? Place::Metadata : Place::Tensor;
    else
      return unexpected("an object");
    return true;
  }

  bool end_object() override {
    if (place_ == Place::Tensor) take_tensor();
    place_ = place_ == Place::Root ? Place::Outside : Place::Root;
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ == Place::Tensor && key_ == "shape")
      place_ = Place::Shape;
    else if (place_ == Place::Tensor && key_ == "data_offsets")
      place_ = Place::Offsets;
    else
      return unexpected("an array");
    return true;
  }

  bool end_array() override {
    place_ = Place::Tensor;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    throw ConfigError(fmt::format("safetensors header is not JSON: error at byte {} of the header", position), file_, kDamaged);
  }

 private:
  enum class Place : std::uint8_t { Outside, Root, Metadata, Tensor, Shape, Offsets };

  [[noreturn]] void fail(const std::string& what) const {
    throw ConfigError(what, tensor_.name.empty() && names_.empty() ? file_ : at_tensor(file_, tensor_.name), kDamaged);
  }
  [[noreturn]] bool unexpected(const std::string& found) const {
    fail(fmt::format("safetensors header holds {} where the format has none", found));
  }

  void take_tensor() {
    for (const char* needed : {"dtype", "shape", "data_offsets"}) {
      if (!seen_.contains(needed)) fail(fmt::format("key '{}' is missing", needed));
    }
    const std::optional<std::int64_t> bits = bits_of(tensor_.dtype_word);
    if (!bits) {
      throw ConfigError(fmt::format("unknown dtype '{}'", tensor_.dtype_word), at_tensor(file_, tensor_.name),
                        "convert the tensor to F32, BF16 or F16");
    }
    tensor_.dtype = dtype_from_safetensors_name(tensor_.dtype_word);
    if (offsets_.size() != 2) fail(fmt::format("data_offsets holds {} numbers, expected 2", offsets_.size()));
    std::int64_t size_bits = *bits;
    bool overflows = false;
    for (const std::int64_t d : tensor_.shape) overflows |= __builtin_mul_overflow(size_bits, d, &size_bits);
    if (overflows) fail(fmt::format("shape {} overflows", text_from_shape(tensor_.shape)));
    if (offsets_[0] > offsets_[1]) fail(fmt::format("data_offsets [{}, {}] run backwards", offsets_[0], offsets_[1]));
    const std::int64_t span = offsets_[1] - offsets_[0];
    if (size_bits % 8 != 0 || span != size_bits / 8) {
      fail(fmt::format("data spans {} bytes, but {} of shape {} takes {}", text_with_thousands(span), tensor_.dtype_word,
                       text_from_shape(tensor_.shape), text_with_thousands((size_bits + 7) / 8)));
    }
    tensor_.begin_bytes = offsets_[0];
    tensor_.end_bytes = offsets_[1];
    header_.tensors.push_back(std::move(tensor_));
  }

  SafetensorsHeader& header_;
  std::string file_;
  Place place_ = Place::Outside;
  std::set<std::string> names_;
  std::set<std::string> seen_;
  std::string key_;
  StoredTensor tensor_;
  std::vector<std::int64_t> offsets_;
};

// Sorted spans must tile the buffer up to the end of the file.
void check_cover(SafetensorsHeader& header, std::int64_t file_bytes, const std::string& file) {
  std::sort(header.tensors.begin(), header.tensors.end(), [](const StoredTensor& a, const StoredTensor& b) {
    return std::tie(a.begin_bytes, a.end_bytes, a.name) < std::tie(b.begin_bytes, b.end_bytes, b.name);
  });
  const std::int64_t buffer_bytes = file_bytes - header.data_begin_bytes;
  std::int64_t covered = 0;
  for (StoredTensor& t : header.tensors) {
    if (t.begin_bytes != covered) {
      throw ConfigError(fmt::format("data starts at byte {} of the buffer, but the data before it ends at {}: {}",
                                    text_with_thousands(t.begin_bytes), text_with_thousands(covered),
                                    t.begin_bytes > covered ? "a gap" : "an overlap"),
                        at_tensor(file, t.name), kDamaged);
    }
    covered = t.end_bytes;
    if (covered > buffer_bytes) {
      throw ConfigError(fmt::format("safetensors file is truncated: data ends at byte {} of the buffer, which has {}",
                                    text_with_thousands(covered), text_with_thousands(buffer_bytes)),
                        at_tensor(file, t.name), kCopyAgain);
    }
    t.begin_bytes += header.data_begin_bytes;
    t.end_bytes += header.data_begin_bytes;
  }
  if (covered != buffer_bytes) {
    throw ConfigError(fmt::format("{} bytes follow the last tensor", text_with_thousands(buffer_bytes - covered)), file, kDamaged);
  }
}

}  // namespace

std::string text_from_shape(const std::vector<std::int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

SafetensorsHeader header_from_bytes(std::span<const std::byte> content, std::int64_t file_bytes, const std::string& file) {
  if (file_bytes < 8 || content.size() < 8) {
    throw ConfigError(fmt::format("safetensors file is truncated: {} bytes, the header length alone takes 8", file_bytes), file,
                      kCopyAgain);
  }
  std::uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | static_cast<std::uint64_t>(content[static_cast<std::size_t>(i)]);
  if (length > static_cast<std::uint64_t>(kLongestHeaderBytes)) {
    throw ConfigError(
        fmt::format("safetensors header claims {} bytes, the limit is {}", length, text_with_thousands(kLongestHeaderBytes)), file,
        kDamaged);
  }
  SafetensorsHeader header;
  header.data_begin_bytes = 8 + static_cast<std::int64_t>(length);
  if (header.data_begin_bytes > file_bytes || content.size() < static_cast<std::size_t>(header.data_begin_bytes)) {
    throw ConfigError(fmt::format("safetensors file is truncated: its header ends at byte {}, the file at {}",
                                  text_with_thousands(header.data_begin_bytes), text_with_thousands(file_bytes)),
                      file, kCopyAgain);
  }
  const auto* text = reinterpret_cast<const char*>(content.data()) + 8;
  if (length == 0 || text[0] != '{') throw ConfigError("safetensors header does not start with '{'", file, kDamaged);
  HeaderEvents events(header, file);
  nlohmann::json::sax_parse(text, text + length, &events);
  check_cover(header, file_bytes, file);
  return header;
}

HeaderLayout layout_header(std::vector<TensorDeclaration> tensors, const std::map<std::string, std::string>& metadata) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorDeclaration& a, const TensorDeclaration& b) {
    const std::int64_t wa = element_bytes(a.dtype), wb = element_bytes(b.dtype);
    return wa != wb ? wa > wb : a.name < b.name;
  });
  HeaderLayout layout;
  std::string json = "{\"__metadata__\":" + nlohmann::json(metadata).dump();
  std::int64_t offset = 0;
  for (const TensorDeclaration& t : tensors) {
    StoredTensor s{.name = t.name, .dtype_word = std::string(safetensors_name(t.dtype)), .dtype = t.dtype, .shape = t.shape};
    s.begin_bytes = offset;
    s.end_bytes = offset = offset + s.numel() * element_bytes(t.dtype);
    json += fmt::format(",{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}}", nlohmann::json(t.name).dump(),
                        s.dtype_word, fmt::join(t.shape, ","), s.begin_bytes, s.end_bytes);
    layout.tensors.push_back(std::move(s));
  }
  json += "}";
  json.resize(static_cast<std::size_t>(round_up(static_cast<std::int64_t>(json.size()), 8)), ' ');
  for (int i = 0; i < 8; ++i) layout.prefix += static_cast<char>(static_cast<std::uint64_t>(json.size()) >> (8 * i) & 0xff);
  layout.prefix += json;
  const auto data_begin = static_cast<std::int64_t>(layout.prefix.size());
  for (StoredTensor& s : layout.tensors) {
    s.begin_bytes += data_begin;
    s.end_bytes += data_begin;
  }
  layout.file_bytes = data_begin + offset;
  return layout;
}

}  // namespace shardplan
