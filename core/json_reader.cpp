#include "core/json_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"
#include "core/units.h"

namespace shardplan {
namespace {

using Json = nlohmann::ordered_json;

// Deeper documents are no file of ours, and readers may recurse.
constexpr std::size_t kDeepest = 100;

std::string escaped(std::string_view key) {
  std::string text;
  for (const char c : key) {
    if (c == '~') {
      text += "~0";
    } else if (c == '/') {
      text += "~1";
    } else {
      text += c;
    }
  }
  return text;
}

std::string place(const std::string& file, const std::string& pointer) { return pointer.empty() ? file : file + "#" + pointer; }

// Watches the parser for what it would accept silently: a key given twice, nesting without end.
class DocumentGuard {
 public:
  explicit DocumentGuard(const std::string& file) : file_(file) {}

  void on(Json::parse_event_t event, const Json& parsed) {
    switch (event) {
      case Json::parse_event_t::object_start:
      case Json::parse_event_t::array_start:
        if (open_.size() == kDeepest)
          throw ConfigError(fmt::format("nested deeper than {} levels", kDeepest), place(file_, pointer()));
        open_.push_back({.is_array = event == Json::parse_event_t::array_start, .keys = {}, .key = {}, .index = 0});
        break;
      case Json::parse_event_t::key:
        key(parsed.get_ref<const std::string&>());
        break;
      case Json::parse_event_t::object_end:
      case Json::parse_event_t::array_end:
        open_.pop_back();
        value_ended();
        break;
      case Json::parse_event_t::value:
        value_ended();
        break;
    }
  }

 private:
  struct Open {
    bool is_array;
    std::set<std::string> keys;
    std::string key;
    std::size_t index;
  };

  void key(const std::string& name) {
    Open& object = open_.back();
    object.key = name;
    if (!object.keys.insert(name).second)
      throw ConfigError(fmt::format("the key \"{}\" stands twice in one object", name), place(file_, pointer()),
                        "keep one of the two");
  }

  void value_ended() {
    if (!open_.empty() && open_.back().is_array) ++open_.back().index;
  }

  [[nodiscard]] std::string pointer() const {
    std::string text;
    for (const Open& level : open_) text += "/" + (level.is_array ? std::to_string(level.index) : escaped(level.key));
    return text;
  }

  const std::string& file_;
  std::vector<Open> open_;
};

// "file:line:column" of the byte before `end`, counting from 1.
std::string line_and_column(std::string_view text, std::size_t end, const std::string& file) {
  const std::string_view before = text.substr(0, end == 0 ? 0 : std::min(end - 1, text.size()));
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const std::size_t line_start = before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1;
  return fmt::format("{}:{}:{}", file, line, before.size() - line_start + 1);
}

// The reason alone: what the parser says after its own account of the place.
std::string reason_of(const std::string& what) {
  std::string reason = what;
  if (const std::size_t bracket = reason.find("] "); bracket != std::string::npos) reason.erase(0, bracket + 2);
  if (reason.starts_with("parse error")) {
    if (const std::size_t colon = reason.find(": "); colon != std::string::npos) reason.erase(0, colon + 2);
  }
  // Quoted input may hold anything; keep the message printable.
  for (char& c : reason) {
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7e) c = '?';
  }
  return reason;
}

std::string described(const Json& value) {
  switch (value.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::object:
      return "an object";
    case Json::value_t::array:
      return "an array";
    case Json::value_t::string:
      return "the text " + value.dump(-1, ' ', false, Json::error_handler_t::replace);
    case Json::value_t::boolean:
      return value.get<bool>() ? "true" : "false";
    case Json::value_t::number_integer:
    case Json::value_t::number_unsigned:
    case Json::value_t::number_float:
      return "the number " + value.dump();
    case Json::value_t::binary:
    case Json::value_t::discarded:
      break;
  }
  return "something else";
}

bool fits(const Json& value) {
  if (!value.is_number_integer()) return false;
  return !value.is_number_unsigned() || value.get<std::uint64_t>() <= static_cast<std::uint64_t>(INT64_MAX);
}

}  // namespace

Json json_from_file(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  std::error_code ignored;
  if (!stream || std::filesystem::is_directory(file, ignored))
    throw IoError(std::string("cannot read the file: ") + std::strerror(stream ? EISDIR : errno), file.string());
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  if (stream.bad()) throw IoError("cannot read the file to its end", file.string());
  return json_from_text(text, file.string());
}

Json json_from_text(std::string_view text, const std::string& file) {
  DocumentGuard guard(file);
  try {
    return Json::parse(text, [&guard](int, Json::parse_event_t event, const Json& parsed) {
      guard.on(event, parsed);
      return true;
    });
  } catch (const Json::parse_error& error) {
    throw ConfigError("no valid JSON: " + reason_of(error.what()), line_and_column(text, error.byte, file));
  } catch (const Json::exception& error) {
    throw ConfigError("no valid JSON: " + reason_of(error.what()), file);
  }
}

JsonReader::JsonReader(const Json& value, std::string file, std::string pointer)
    : value_(&value), file_(std::move(file)), pointer_(std::move(pointer)) {}

bool JsonReader::has(const std::string& key) const {
  return value_->is_object() && value_->contains(key) && !value_->at(key).is_null();
}
bool JsonReader::is_object() const { return value_->is_object(); }
bool JsonReader::is_string() const { return value_->is_string(); }
const Json& JsonReader::raw() const { return *value_; }

const Json& JsonReader::member(const std::string& key, std::string_view expected) {
  asked_.insert(key);
  if (!value_->is_object()) fail("", fmt::format("expected an object with \"{}\", found {}", key, described(*value_)));
  const auto found = value_->find(key);
  if (found != value_->end()) return *found;
  std::vector<std::string> others;
  for (const auto& [name, ignored] : value_->items()) {
    if (!asked_.contains(name)) others.push_back(name);
  }
  const std::string near = nearest(key, others);
  fail("", fmt::format("the key \"{}\" is missing", key),
       near.empty() ? fmt::format("add \"{}\": {}", key, expected) : fmt::format("\"{}\" where the file says \"{}\"", key, near));
}

std::string JsonReader::string(const std::string& key) {
  const Json& value = member(key, "a text");
  if (!value.is_string()) fail(key, "expected a text, found " + described(value));
  return value.get<std::string>();
}

std::int64_t JsonReader::integer(const std::string& key, std::int64_t least, std::int64_t most) {
  const Json& value = member(key, "an integer");
  if (!fits(value)) fail(key, "expected an integer, found " + described(value));
  const auto number = value.get<std::int64_t>();
  if (number < least) fail(key, fmt::format("expected an integer of at least {}, found {}", least, number));
  if (number > most) fail(key, fmt::format("expected an integer of at most {}, found {}", most, number));
  return number;
}

double JsonReader::number(const std::string& key) {
  const Json& value = member(key, "a number");
  if (!value.is_number()) fail(key, "expected a number, found " + described(value));
  return value.get<double>();
}

bool JsonReader::boolean(const std::string& key) {
  const Json& value = member(key, "true or false");
  if (!value.is_boolean()) fail(key, "expected true or false, found " + described(value));
  return value.get<bool>();
}

JsonReader JsonReader::object(const std::string& key) {
  const Json& value = member(key, "an object");
  if (!value.is_object()) fail(key, "expected an object, found " + described(value));
  return JsonReader(value, file_, pointer_ + "/" + escaped(key));
}

std::vector<JsonReader> JsonReader::array(const std::string& key) {
  const Json& value = member(key, "an array");
  if (!value.is_array()) fail(key, "expected an array, found " + described(value));
  std::vector<JsonReader> elements;
  elements.reserve(value.size());
  for (std::size_t i = 0; i < value.size(); ++i)
    elements.emplace_back(value[i], file_, fmt::format("{}/{}/{}", pointer_, escaped(key), i));
  return elements;
}

std::vector<std::int64_t> JsonReader::integers(const std::string& key) {
  std::vector<std::int64_t> numbers;
  for (const JsonReader& element : array(key)) numbers.push_back(element.as_integer());
  return numbers;
}

std::vector<std::string> JsonReader::strings(const std::string& key) {
  std::vector<std::string> texts;
  for (const JsonReader& element : array(key)) texts.push_back(element.as_string());
  return texts;
}

namespace {

// The text of a quantity, or nothing; 0 needs no unit.
std::optional<std::string> quantity_text(const Json& value, std::string_view unit) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number() && value.get<double>() == 0) return fmt::format("0 {}", unit);
  return std::nullopt;
}

}  // namespace

std::int64_t JsonReader::bytes(const std::string& key) {
  const Json& value = member(key, "\"80 GiB\"");
  const std::optional<std::string> text = quantity_text(value, "B");
  const std::optional<std::int64_t> parsed = text ? bytes_from_text(*text) : std::nullopt;
  if (!parsed) fail(key, "expected bytes with their unit, found " + described(value), "a text such as \"80 GiB\" or \"80 GB\"");
  return *parsed;
}

double JsonReader::bytes_per_second(const std::string& key) {
  const Json& value = member(key, "\"900 GB/s\"");
  const std::optional<std::string> text = quantity_text(value, "B/s");
  const std::optional<double> parsed = text ? bytes_per_second_from_text(*text) : std::nullopt;
  if (!parsed) fail(key, "expected bytes per second with their unit, found " + described(value), "a text such as \"900 GB/s\"");
  return *parsed;
}

double JsonReader::flops_per_second(const std::string& key) {
  const Json& value = member(key, "\"989 TFLOP/s\"");
  const std::optional<std::string> text = quantity_text(value, "FLOP/s");
  const std::optional<double> parsed = text ? flops_per_second_from_text(*text) : std::nullopt;
  if (!parsed)
    fail(key, "expected operations per second with their unit, found " + described(value), "a text such as \"989 TFLOP/s\"");
  return *parsed;
}

double JsonReader::seconds(const std::string& key) {
  const Json& value = member(key, "\"5 us\"");
  const std::optional<std::string> text = quantity_text(value, "s");
  const std::optional<double> parsed = text ? seconds_from_text(*text) : std::nullopt;
  if (!parsed) fail(key, "expected a duration with its unit, found " + described(value), "a text such as \"5 us\"");
  return *parsed;
}

std::string JsonReader::string_or(const std::string& key, std::string otherwise) {
  asked_.insert(key);
  return has(key) ? string(key) : std::move(otherwise);
}

std::int64_t JsonReader::integer_or(const std::string& key, std::int64_t otherwise, std::int64_t least) {
  asked_.insert(key);
  return has(key) ? integer(key, least) : otherwise;
}

double JsonReader::number_or(const std::string& key, double otherwise) {
  asked_.insert(key);
  return has(key) ? number(key) : otherwise;
}

bool JsonReader::boolean_or(const std::string& key, bool otherwise) {
  asked_.insert(key);
  return has(key) ? boolean(key) : otherwise;
}

std::string JsonReader::as_string() const {
  if (!value_->is_string()) fail("", "expected a text, found " + described(*value_));
  return value_->get<std::string>();
}

std::int64_t JsonReader::as_integer() const {
  if (!fits(*value_)) fail("", "expected an integer, found " + described(*value_));
  return value_->get<std::int64_t>();
}

void JsonReader::ignore(const std::string& key) { asked_.insert(key); }
void JsonReader::ignore_rest() { ignore_rest_ = true; }

void JsonReader::finish() const {
  if (ignore_rest_) return;
  if (!value_->is_object()) fail("", "expected an object, found " + described(*value_));
  for (const auto& [key, ignored] : value_->items()) {
    if (asked_.contains(key)) continue;
    const std::vector<std::string> known(asked_.begin(), asked_.end());
    const std::string near = nearest(key, known);
    fail(key, fmt::format("unknown key \"{}\"", key),
         near.empty() ? fmt::format("one of {}", fmt::join(known, ", ")) : fmt::format("\"{}\"", near));
  }
}

std::string JsonReader::where(const std::string& key) const {
  return place(file_, key.empty() ? pointer_ : pointer_ + "/" + escaped(key));
}

void JsonReader::fail(const std::string& key, const std::string& problem, const std::string& remedy) const {
  throw ConfigError(problem, where(key), remedy);
}

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  std::string best;
  std::size_t best_distance = SIZE_MAX;
  for (const std::string& candidate : candidates) {
    // Optimal string alignment: insertions, deletions, substitutions and swaps of neighbours cost one each.
    const std::size_t columns = candidate.size() + 1;
    std::vector<std::size_t> before(columns), above(columns), row(columns);
    for (std::size_t j = 0; j < columns; ++j) above[j] = j;
    for (std::size_t i = 1; i <= word.size(); ++i) {
      row[0] = i;
      for (std::size_t j = 1; j < columns; ++j) {
        const bool same = word[i - 1] == candidate[j - 1];
        row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (same ? 0U : 1U)});
        if (i > 1 && j > 1 && word[i - 1] == candidate[j - 2] && word[i - 2] == candidate[j - 1])
          row[j] = std::min(row[j], before[j - 2] + 1);
      }
      std::swap(before, above);
      std::swap(above, row);
    }
    if (above[columns - 1] < best_distance) {
      best_distance = above[columns - 1];
      best = candidate;
    }
  }
  // Near: at most a third of the longer word differs.
  const std::size_t longer = std::max(word.size(), best.size());
  return best_distance * 3 <= longer ? best : std::string();
}

}  // namespace shardplan
