#include "simulator/allocator_options.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/json_reader.h"

namespace shardplan {
namespace {

const std::string kWhere = "allocator settings";
constexpr std::int64_t kMostMib = std::int64_t{1} << 40;

[[noreturn]] void refuse(const std::string& problem, const std::string& remedy = "") { throw UsageError(problem, kWhere, remedy); }

// One "key:value" of the text; a list keeps its brackets.
struct Setting {
  std::string key;
  std::string value;
};

std::vector<Setting> settings_of(std::string_view text) {
  std::string packed;
  std::copy_if(text.begin(), text.end(), std::back_inserter(packed), [](unsigned char c) { return std::isspace(c) == 0; });
  std::vector<Setting> settings;
  std::size_t at = 0;
  while (at < packed.size()) {
    const std::size_t colon = packed.find_first_of(":,", at);
    if (colon == std::string::npos || packed[colon] != ':' || colon == at)
      refuse("'" + packed.substr(at, packed.find(',', at) - at) + "' is no setting", "write key:value, joined by commas");
    const std::size_t value = colon + 1;
    std::size_t end = packed.find(',', value);
    if (value < packed.size() && packed[value] == '[') {
      const std::size_t bracket = packed.find(']', value);
      if (bracket == std::string::npos)
        refuse("the list of '" + packed.substr(at, colon - at) + "' does not end", "close it with ]");
      end = bracket + 1 == packed.size() ? std::string::npos : bracket + 1;
      if (end != std::string::npos && packed[end] != ',')
        refuse("after ']' comes '" + packed.substr(end) + "'", "join settings by commas");
    }
    settings.push_back({packed.substr(at, colon - at), packed.substr(value, end == std::string::npos ? end : end - value)});
    at = end == std::string::npos ? packed.size() : end + 1;
  }
  return settings;
}

std::int64_t whole_number(const Setting& setting, std::string_view text) {
  std::int64_t number = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (status != std::errc{} || end != text.data() + text.size() || number < 0)
    refuse(setting.key + " is '" + std::string(text) + "'", "give a whole number");
  return number;
}

std::int64_t mebibytes(const Setting& setting) {
  const std::int64_t number = whole_number(setting, setting.value);
  if (number > kMostMib) refuse(setting.key + " is " + setting.value, "give at most " + std::to_string(kMostMib));
  return number * kAllocatorMib;
}

double fraction(const Setting& setting) {
  double number = 0;
  const char* const end = setting.value.data() + setting.value.size();
  const auto [after, status] = std::from_chars(setting.value.data(), end, number);
  if (status != std::errc{} || after != end) refuse(setting.key + " is '" + setting.value + "'", "give a number like 0.8");
  return number;
}

bool truth(const Setting& setting) {
  if (setting.value != "True" && setting.value != "False")
    refuse(setting.key + " is '" + setting.value + "'", "give True or False");
  return setting.value == "True";
}

std::int64_t divisions(const Setting& setting, std::string_view text) {
  const std::int64_t number = whole_number(setting, text);
  if (number != 0 && !std::has_single_bit(static_cast<std::uint64_t>(number)))
    refuse(setting.key + " has " + std::string(text) + " divisions", "give a power of two, or 0 for none");
  return number;
}

// "4" for all sizes, or "[256:1,512:2,>:8]": sizes in MiB, each a power of two; the first also holds for all below it, ">" for the
// rest.
void read_roundup(const Setting& setting, std::array<std::int64_t, kNumRoundupIntervals>& table) {
  if (!setting.value.starts_with('[')) {
    const std::int64_t all = divisions(setting, setting.value);
    if (all == 0) refuse(setting.key + " is 0", "give a power of two");
    table.fill(all);
    return;
  }
  std::size_t from = 1;
  bool is_first = true;
  std::string_view rest = std::string_view(setting.value).substr(1, setting.value.size() - 2);
  while (!rest.empty()) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view entry = rest.substr(0, comma);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
    const std::size_t colon = entry.find(':');
    if (colon == std::string_view::npos)
      refuse(setting.key + " has the entry '" + std::string(entry) + "'", "write size:divisions");
    const std::int64_t count = divisions(setting, entry.substr(colon + 1));
    if (entry.substr(0, colon) == ">") {
      std::fill(table.begin() + static_cast<std::ptrdiff_t>(from), table.end(), count);
      continue;
    }
    const auto size_mib = static_cast<std::uint64_t>(whole_number(setting, entry.substr(0, colon)));
    if (!std::has_single_bit(size_mib))
      refuse(setting.key + " has the size " + std::string(entry.substr(0, colon)), "give a power of two");
    const std::size_t interval =
        std::min<std::size_t>(static_cast<std::size_t>(std::countr_zero(size_mib)), kNumRoundupIntervals - 1);
    if (is_first) std::fill_n(table.begin(), interval, count);
    is_first = false;
    table[interval] = count;
    from = interval + 1;
  }
}

// Settings of speed, of the host or of graph captures: checked, and of no effect on a size.
const std::vector<std::string> kTruthsWithoutEffect = {"pinned_use_background_threads", "pinned_use_cuda_host_register",
                                                       "release_lock_on_cudamalloc", "graph_capture_record_stream_reuse"};
const std::vector<std::string> kNumbersWithoutEffect = {"pinned_num_register_threads", "pinned_reserve_segment_size_mb"};

bool contains(const std::vector<std::string>& words, const std::string& word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

void read(const Setting& setting, CachingAllocatorOptions& options) {
  const std::string& key = setting.key;
  if (key == "max_split_size_mb") {
    options.max_split_size_bytes = mebibytes(setting);
  } else if (key == "max_non_split_rounding_mb") {
    options.max_non_split_rounding_bytes = mebibytes(setting);
  } else if (key == "large_segment_size_mb") {
    options.large_segment_bytes = mebibytes(setting);
    if (options.large_segment_bytes <= 10 * kAllocatorMib) refuse(key + " is " + setting.value, "give at least 11");
  } else if (key == "garbage_collection_threshold") {
    options.garbage_collection_threshold_fraction = fraction(setting);
    if (!(options.garbage_collection_threshold_fraction > 0 && options.garbage_collection_threshold_fraction < 1))
      refuse(key + " is " + setting.value, "give a number between 0 and 1, both excluded");
  } else if (key == "per_process_memory_fraction") {
    options.memory_fraction = fraction(setting);
    if (!(options.memory_fraction >= 0 && options.memory_fraction <= 1))
      refuse(key + " is " + setting.value, "give a number from 0 to 1");
  } else if (key == "roundup_power2_divisions") {
    read_roundup(setting, options.roundup_power2_divisions);
  } else if (key == "expandable_segments") {
    options.expandable_segments = truth(setting);
  } else if (key == "backend") {
    if (setting.value != "native") refuse("backend is '" + setting.value + "'", "only the native allocator is modelled");
  } else if (contains(kTruthsWithoutEffect, key)) {
    static_cast<void>(truth(setting));
  } else if (contains(kNumbersWithoutEffect, key)) {
    const std::int64_t number = whole_number(setting, setting.value);
    if (key == "pinned_num_register_threads" && (number > 128 || !std::has_single_bit(static_cast<std::uint64_t>(number))))
      refuse(key + " is " + setting.value, "give a power of two up to 128");
  } else {
    std::vector<std::string> known = {
        "max_split_size_mb",           "max_non_split_rounding_mb", "large_segment_size_mb", "garbage_collection_threshold",
        "per_process_memory_fraction", "roundup_power2_divisions",  "expandable_segments",   "backend"};
    known.insert(known.end(), kTruthsWithoutEffect.begin(), kTruthsWithoutEffect.end());
    known.insert(known.end(), kNumbersWithoutEffect.begin(), kNumbersWithoutEffect.end());
    const std::string near = nearest(key, known);
    std::string all = known.front();
    for (const std::string& name : std::span(known).subspan(1)) all += ", " + name;
    refuse("unknown setting '" + key + "'", near.empty() ? "known are " + all : "did you mean " + near + "?");
  }
}

}  // namespace

CachingAllocatorOptions allocator_options_from_text(std::string_view text, const CachingAllocatorOptions& base) {
  CachingAllocatorOptions options = base;
  for (const Setting& setting : settings_of(text)) read(setting, options);
  const auto not_below_segment = [&options](const std::string& key, const std::optional<std::int64_t>& bytes) {
    if (!bytes || *bytes >= options.large_segment_bytes) return;
    refuse(key + " is " + std::to_string(*bytes / kAllocatorMib) + ", less than large segments have",
           "give at least " + std::to_string(options.large_segment_bytes / kAllocatorMib));
  };
  not_below_segment("max_split_size_mb", options.max_split_size_bytes);
  not_below_segment("max_non_split_rounding_mb", options.max_non_split_rounding_bytes);
  return options;
}

}  // namespace shardplan
