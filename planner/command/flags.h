// The flags of `plan`: one table that registers them, prints the help, checks job files and suggests the nearest.
//
// Every flag may be written with - or _ and under the names that people bring from other tools (kAliases). A flag of another tool
// that has no counterpart of its own is answered with ours. Nothing is ever silently ignored.
// Errors: UsageError for an unknown flag, a missing value, a flag of another verb.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace shardplan {

enum class Verb { Plan, Explain, Simulate, Check, Validate, Models, Hardware, Env };
[[nodiscard]] std::string_view verb_name(Verb verb);

struct FlagRow {
  std::string_view name;   // "seq-len"
  std::string_view value;  // "S"; empty: a switch
  std::string_view group;  // heading of the help
  std::string_view help;
  bool repeats = false;
  bool in_job_file = false;  // may stand in a --workload file, as seq_len
  std::string_view verbs;    // letters of the verbs that take it, see verb_letter()
};
[[nodiscard]] std::span<const FlagRow> flag_table();
// p plan, e explain, s simulate, c check, v validate, m models, h hardware, n env.
[[nodiscard]] char verb_letter(Verb verb);

// Values as given, by flag name, and where each was given: "--seq-len", or "job.json#/seq_len".
struct Given {
  std::vector<std::string> values;  // a switch has none
  std::string where;
  bool from_file = false;
};

struct CommandLine {
  Verb verb = Verb::Plan;
  bool help = false;
  bool version = false;
  std::vector<std::string> positionals;
  std::map<std::string, Given> given;

  [[nodiscard]] bool has(const std::string& flag) const { return given.contains(flag); }
  [[nodiscard]] std::optional<std::string> value(const std::string& flag) const;
};

[[nodiscard]] CommandLine parse_command_line(const std::vector<std::string>& arguments);
[[nodiscard]] std::string help_text(Verb verb);

}  // namespace shardplan
