// Strict reading of JSON objects: every key is asked for by name, and what was not asked for is an error.
//
//   const nlohmann::ordered_json document = json_from_file(path);
//   JsonReader r(document, path.string());
//   spec.memory_bytes = r.bytes("memory");          // "80 GiB"; a bare number is an error
//   spec.name = r.string("name");
//   for (JsonReader layer : r.array("layers")) ...
//   r.finish();                                     // unknown keys left? ConfigError with the nearest valid key
//
// Errors: ConfigError with `where` = "file#/json/pointer", what was expected and what was found.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace shardplan {

// Parses a whole file. IoError when it cannot be read, ConfigError with line and column when it is no JSON or holds a key twice.
[[nodiscard]] nlohmann::ordered_json json_from_file(const std::filesystem::path& file);
[[nodiscard]] nlohmann::ordered_json json_from_text(std::string_view text, const std::string& file);

class JsonReader {
 public:
  // The document must outlive the reader.
  JsonReader(const nlohmann::ordered_json& value, std::string file, std::string pointer = "");

  [[nodiscard]] bool has(const std::string& key) const;  // present and not null
  [[nodiscard]] bool is_object() const;
  [[nodiscard]] bool is_string() const;
  [[nodiscard]] const nlohmann::ordered_json& raw() const;

  // Required members.
  [[nodiscard]] std::string string(const std::string& key);
  [[nodiscard]] std::int64_t integer(const std::string& key, std::int64_t least = INT64_MIN, std::int64_t most = INT64_MAX);
  [[nodiscard]] double number(const std::string& key);
  [[nodiscard]] bool boolean(const std::string& key);
  [[nodiscard]] JsonReader object(const std::string& key);
  [[nodiscard]] std::vector<JsonReader> array(const std::string& key);
  [[nodiscard]] std::vector<std::int64_t> integers(const std::string& key);
  [[nodiscard]] std::vector<std::string> strings(const std::string& key);
  // Quantities written as text with their unit (core/units.h).
  [[nodiscard]] std::int64_t bytes(const std::string& key);
  [[nodiscard]] double bytes_per_second(const std::string& key);
  [[nodiscard]] double flops_per_second(const std::string& key);
  [[nodiscard]] double seconds(const std::string& key);

  // Optional members: absent or null gives the default.
  [[nodiscard]] std::string string_or(const std::string& key, std::string otherwise);
  [[nodiscard]] std::int64_t integer_or(const std::string& key, std::int64_t otherwise, std::int64_t least = INT64_MIN);
  [[nodiscard]] double number_or(const std::string& key, double otherwise);
  [[nodiscard]] bool boolean_or(const std::string& key, bool otherwise);

  // The value itself, for readers of array elements.
  [[nodiscard]] std::string as_string() const;
  [[nodiscard]] std::int64_t as_integer() const;

  void ignore(const std::string& key);  // known, but not read here
  void ignore_rest();                   // a foreign format whose other keys are not ours to judge
  void finish() const;                  // ConfigError when a key was never asked for

  [[nodiscard]] std::string where(const std::string& key = "") const;  // "file#/pointer/key"
  [[noreturn]] void fail(const std::string& key, const std::string& problem, const std::string& remedy = "") const;

 private:
  const nlohmann::ordered_json& member(const std::string& key, std::string_view expected);
  const nlohmann::ordered_json* value_;
  std::string file_, pointer_;
  std::set<std::string> asked_;
  bool ignore_rest_ = false;
};

// The candidate nearest to `word` by edit distance; empty when none is near.
[[nodiscard]] std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace shardplan
