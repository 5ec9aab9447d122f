// Where the shipped models/ and hardware/ are: the same folder for an installed tree, a build tree and a folder that is named.
//
// Tried in order: --configs, the environment's SHARDPLAN_CONFIGS, ../share/shardplan/configs beside the program (installed),
// ../configs (build tree, a link), ../../../configs (build/<preset>/bin). Errors: IoError that lists what was tried.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace shardplan {

[[nodiscard]] std::filesystem::path config_folder(const std::optional<std::string>& named, const char* environment,
                                                  const std::filesystem::path& program);

// The running program's own file.
[[nodiscard]] std::filesystem::path program_file();

}  // namespace shardplan
