// Job files of configs/workloads: the flags of `plan` as one JSON object, for --workload.
//
//   {"schema_version": 1, "kind": "shardplan.job", "model": "llama3-8b", "gpus": 4, "seq_len": 2048, "train": ["last:4", "head"]}
//
// Keys are the flags' names with _ for -. A flag on the command line wins over the file. Relative paths in a file are resolved
// against it. Errors: ConfigError for an unknown key (with the nearest), a wrong type, a wrong kind or version.
#pragma once

#include <filesystem>

#include "planner/command/flags.h"

namespace shardplan {

// Adds what the file says and the command line does not.
void add_job_file(const std::filesystem::path& file, CommandLine& line);

}  // namespace shardplan
