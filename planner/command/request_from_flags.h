// Flags and job file -> PlanRequest: every value parsed, checked alone and against the others.
//
// Errors: UsageError (flag) or ConfigError (job file) that names the value, where it was given and the words that are possible.
#pragma once

#include <filesystem>

#include "planner/command/flags.h"
#include "planner/search/request.h"

namespace shardplan {

[[nodiscard]] PlanRequest request_from_flags(const CommandLine& line, const std::filesystem::path& configs);

// --gpu and --hardware, as `plan simulate` takes them too; `otherwise` is the id when neither is given.
[[nodiscard]] HardwareSpec hardware_from_flags(const CommandLine& line, const std::filesystem::path& configs,
                                               const std::string& otherwise);

// --memory-limit, when given.
[[nodiscard]] std::optional<std::int64_t> bytes_from_flag(const CommandLine& line, const std::string& flag);

// Number of something, from a flag or its default.
[[nodiscard]] std::int64_t count_from_flag(const CommandLine& line, const std::string& flag, std::int64_t otherwise,
                                           std::int64_t least, std::int64_t most);

}  // namespace shardplan
