// The command line of `execute`: plan.json and how to run it; `execute init`.
//
// Errors: UsageError for flags that make no sense, ConfigError for a bad plan file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "executor/random_init.h"
#include "executor/training_run.h"

namespace shardplan {

struct InitRequest {
  std::string model;
  std::filesystem::path out;
  std::optional<std::string> dtype;
  std::optional<double> std_deviation;
  RandomInit init;
};

// What one command line asks for.
struct ExecuteCommand {
  std::optional<RunRequest> run;
  std::optional<InitRequest> init;
  std::string text;  // help or version: to be printed, nothing else to do
};

// `configs`: the folder with models/ and hardware/; empty when there is none.
[[nodiscard]] ExecuteCommand parse_execute(int argc, const char* const* argv, const std::filesystem::path& configs);

}  // namespace shardplan
