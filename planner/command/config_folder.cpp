#include "planner/command/config_folder.h"

#include <fmt/format.h>

#include <vector>

#include "core/error.h"

namespace shardplan {
namespace fs = std::filesystem;

fs::path config_folder(const std::optional<std::string>& named, const char* environment, const fs::path& program) {
  const auto holds_configs = [](const fs::path& folder) {
    return fs::is_directory(folder / "models") && fs::is_directory(folder / "hardware");
  };
  // A folder that somebody named is taken or refused, never passed over.
  if (named || (environment != nullptr && *environment != '\0')) {
    const fs::path folder = named ? *named : environment;
    if (holds_configs(folder)) return folder;
    throw IoError(fmt::format("no models/ and hardware/ in '{}'", folder.string()), named ? "--configs" : "SHARDPLAN_CONFIGS",
                  "name the configs folder of the project or of an installation");
  }
  const fs::path bin = program.parent_path();
  std::string tried;
  for (const char* relative : {"../share/shardplan/configs", "../configs", "../../../configs"}) {
    const fs::path folder = (bin / relative).lexically_normal();
    if (holds_configs(folder)) return folder;
    tried += (tried.empty() ? "" : ", ") + folder.string();
  }
  throw IoError("the folder with models and hardware is not found", tried,
                "--configs DIR, or SHARDPLAN_CONFIGS in the environment");
}

fs::path program_file() { return fs::read_symlink("/proc/self/exe"); }

}  // namespace shardplan
