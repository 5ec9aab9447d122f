#include "planner/command/job_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json_reader.h"

namespace shardplan {
namespace {

std::string key_of(std::string_view flag) {
  std::string key(flag);
  std::replace(key.begin(), key.end(), '-', '_');
  return key;
}

// A number or a text, as it would be written on the command line.
std::string word_of(const nlohmann::ordered_json& value) { return value.is_string() ? value.get<std::string>() : value.dump(); }

bool is_word(const nlohmann::ordered_json& value) { return value.is_string() || value.is_number(); }

// One key; nothing for a switch that is false.
std::optional<Given> given_from(JsonReader& reader, const FlagRow& row, const std::string& key, const std::filesystem::path& file) {
  const nlohmann::ordered_json& value = reader.raw().at(key);
  Given given{.values = {}, .where = reader.where(key), .from_file = true};
  if (row.value.empty()) {
    if (!reader.boolean(key)) return std::nullopt;
    return given;
  }
  reader.ignore(key);
  if (is_word(value)) {
    given.values.push_back(word_of(value));
  } else if ((row.repeats || row.name == "betas") && value.is_array() && !value.empty() &&
             std::all_of(value.begin(), value.end(), is_word)) {
    for (const nlohmann::ordered_json& item : value) given.values.push_back(word_of(item));
    if (row.name == "betas") given.values = {fmt::format("{}", fmt::join(given.values, ","))};
  } else {
    reader.fail(key,
                fmt::format("expected a {}, found {}", row.repeats ? "text or a list of texts" : "text or a number", value.dump()));
  }
  // A path that exists beside the file is meant that way; an alias or an id has no such file.
  if (row.name == "model" || row.name == "hardware") {
    const std::filesystem::path beside = file.parent_path() / given.values.front();
    std::error_code unreadable;
    if (std::filesystem::exists(beside, unreadable)) given.values.front() = beside.string();
  }
  return given;
}

}  // namespace

void add_job_file(const std::filesystem::path& file, CommandLine& line) {
  const nlohmann::ordered_json document = json_from_file(file);
  JsonReader reader(document, file.string());
  const std::string kind = reader.string("kind");
  if (kind != "shardplan.job") reader.fail("kind", fmt::format("expected \"shardplan.job\", found \"{}\"", kind));
  if (const std::int64_t version = reader.integer("schema_version"); version != 1) {
    reader.fail("schema_version", fmt::format("job files of version {} are not known", version), "version 1");
  }
  reader.ignore("description");
  for (const FlagRow& row : flag_table()) {
    const std::string key = key_of(row.name);
    if (!row.in_job_file || !reader.has(key)) {
      if (row.in_job_file) reader.ignore(key);
      continue;
    }
    std::optional<Given> given = given_from(reader, row, key, file);
    const std::string flag(row.name);
    // --gpu and --hardware name the same thing: the command line's wins over either of the file.
    const bool overridden = line.has(flag) || (flag == "gpu" && line.has("hardware")) || (flag == "hardware" && line.has("gpu")) ||
                            (flag == "model" && !line.positionals.empty());
    if (given && !overridden) line.given[flag] = std::move(*given);
  }
  reader.finish();
}

}  // namespace shardplan
