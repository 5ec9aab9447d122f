// What each verb of `plan` does with its flags. Results go to stdout, everything else to the log.
//
// Returns the exit code; errors are thrown (core/error.h) and printed by main.
#pragma once

#include <filesystem>

#include "core/error.h"
#include "planner/command/flags.h"

namespace shardplan {

struct Surroundings {
  std::filesystem::path configs;
  std::filesystem::path program;
  bool colour = false;  // stdout is a terminal that wants it
};

[[nodiscard]] ExitCode run_plan(const CommandLine& line, const Surroundings& around);
[[nodiscard]] ExitCode run_simulate(const CommandLine& line, const Surroundings& around);
[[nodiscard]] ExitCode run_check(const CommandLine& line, const Surroundings& around);
[[nodiscard]] ExitCode run_validate(const CommandLine& line, const Surroundings& around);
[[nodiscard]] ExitCode run_models(const CommandLine& line, const Surroundings& around);
[[nodiscard]] ExitCode run_hardware(const CommandLine& line, const Surroundings& around);
[[nodiscard]] ExitCode run_env(const CommandLine& line, const Surroundings& around);

// The one positional argument of a verb; UsageError without it or with more.
[[nodiscard]] std::string only_positional(const CommandLine& line, std::string_view what);

// Writes to stdout and makes sure that it arrived: IoError for a full disk or a closed pipe.
void print_result(std::string_view text);

}  // namespace shardplan
