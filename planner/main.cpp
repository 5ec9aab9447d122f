// The `plan` command: one verb per run, one catch for every error.
#include <fmt/format.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "planner/command/config_folder.h"
#include "planner/command/flags.h"
#include "planner/command/verbs.h"

namespace shardplan {
namespace {

bool wants_colour(int descriptor) {
  const auto set = [](const char* name) {
    const char* value = std::getenv(name);
    return value != nullptr && *value != '\0';
  };
  if (set("NO_COLOR")) return false;
  if (const char* forced = std::getenv("CLICOLOR_FORCE"); forced != nullptr && std::string_view(forced) != "0" && *forced != '\0')
    return true;
  const char* term = std::getenv("TERM");
  return ::isatty(descriptor) == 1 && term != nullptr && std::string_view(term) != "dumb";
}

// Logs go to stderr, one plain line each.
void set_up_log(const CommandLine& line) {
  auto log = std::make_shared<spdlog::logger>("plan", std::make_shared<spdlog::sinks::stderr_sink_st>());
  log->set_pattern("%l: %v");
  log->set_level(line.has("quiet") ? spdlog::level::err : line.has("verbose") ? spdlog::level::debug : spdlog::level::warn);
  spdlog::set_default_logger(log);
}

ExitCode run(const std::vector<std::string>& arguments) {
  if (arguments.empty()) {
    print_result(help_text(Verb::Plan));
    return ExitCode::Usage;
  }
  const CommandLine line = parse_command_line(arguments);
  if (line.help) {
    print_result(help_text(line.verb));
    return ExitCode::Ok;
  }
  if (line.version) {
    print_result(fmt::format("shardplan {}\n", SHARDPLAN_VERSION));
    return ExitCode::Ok;
  }
  set_up_log(line);
  Surroundings around{.program = program_file(), .colour = wants_colour(STDOUT_FILENO)};
  around.configs = config_folder(line.value("configs"), std::getenv("SHARDPLAN_CONFIGS"), around.program);
  spdlog::debug("configs: {}", around.configs.string());
  switch (line.verb) {
    case Verb::Plan:
    case Verb::Explain:
      return run_plan(line, around);
    case Verb::Simulate:
      return run_simulate(line, around);
    case Verb::Check:
      return run_check(line, around);
    case Verb::Validate:
      return run_validate(line, around);
    case Verb::Models:
      return run_models(line, around);
    case Verb::Hardware:
      return run_hardware(line, around);
    case Verb::Env:
      return run_env(line, around);
  }
  return ExitCode::RuntimeFailure;
}

}  // namespace
}  // namespace shardplan

int main(int argc, char** argv) {
  using namespace shardplan;
  try {
    return static_cast<int>(run(std::vector<std::string>(argv + 1, argv + argc)));
  } catch (const Error& error) {
    fmt::print(stderr, "plan: {}\n", error.what());
    return static_cast<int>(error.code());
  } catch (const CheckFailure& failure) {
    fmt::print(stderr, "plan: a law of this program is broken, please report it: {}\n", failure.what());
    return static_cast<int>(ExitCode::RuntimeFailure);
  } catch (const std::exception& failure) {
    fmt::print(stderr, "plan: {}\n", failure.what());
    return static_cast<int>(ExitCode::RuntimeFailure);
  }
}
