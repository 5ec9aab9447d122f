// The `execute` command: finds out which rank this is, or starts the ranks; one catch for every error.
#include <fmt/format.h>

#include <csignal>
#include <cstdio>
#include <ctime>
#include <filesystem>

#include "core/error.h"
#include "executor/command.h"
#include "executor/launch.h"
#include "executor/random_init.h"
#include "executor/run_folder.h"
#include "executor/training_run.h"
#include "planner/graph/model_spec.h"

namespace shardplan {
namespace {

// ../share/shardplan/configs when installed, the tree's own from a build folder; empty when neither is there.
std::filesystem::path configs_beside_program() {
  if (const std::optional<std::string> named = process_environment("SHARDPLAN_CONFIGS")) return *named;
  const std::filesystem::path bin = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  for (const char* relative : {"../share/shardplan/configs", "../configs", "../../../configs"}) {
    const std::filesystem::path folder = (bin / relative).lexically_normal();
    if (std::filesystem::is_directory(folder / "hardware")) return folder;
  }
  return {};
}

int make_model(InitRequest request, const std::filesystem::path& configs) {
  const FoundModel found = find_model(request.model, configs / "models");
  request.init.dtype = request.dtype ? *dtype_from_name(*request.dtype) : found.spec.checkpoint_dtype;
  request.init.std_deviation = request.std_deviation.value_or(found.spec.initializer_range);
  write_random_model(found.spec, request.out, request.init);
  fmt::print("{}: {}, seed {}, {}\n", request.out.string(), found.spec.name, request.init.seed, dtype_name(request.init.dtype));
  return 0;
}

int train(const RunRequest& request) {
  catch_stop_signals();
  const std::int32_t world = request.plan.mesh.world();
  if (const std::optional<RankPlace> place = rank_from_environment(process_environment)) {
    if (place->world != world) {
      throw UsageError(fmt::format("the plan is for {} ranks, {} started {}", world, place->launcher, place->world),
                       "environment of " + place->launcher,
                       fmt::format("start {} ranks, or plan with --gpus {}", world, place->world));
    }
    try {
      return run_rank(request, *place);
    } catch (const std::exception& e) {
      if (!place->error_file.empty()) write_error_file(place->error_file, e.what(), static_cast<std::int64_t>(std::time(nullptr)));
      throw;
    }
  }
  if (world == 1) return run_rank(request, RankPlace{});
  return run_local_ranks(world, [&](const RankPlace& place) { return run_rank(request, place); });
}

int run(int argc, const char* const* argv) {
  const std::filesystem::path configs = configs_beside_program();
  const ExecuteCommand command = parse_execute(argc, argv, configs);
  if (command.init) return make_model(*command.init, configs);
  if (!command.run) {
    fmt::print("{}", command.text);
    return 0;
  }
  try {
    return train(*command.run);
  } catch (const std::exception& e) {
    note_failure(command.run->out, e.what());
    throw;
  }
}

}  // namespace
}  // namespace shardplan

int main(int argc, char** argv) {
  // A file beyond a limit is an error of that write, not the end of the process.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    return shardplan::run(argc, argv);
  } catch (const shardplan::Error& e) {
    fmt::print(stderr, "error: {}\n", e.what());
    return static_cast<int>(e.code());
  } catch (const std::exception& e) {
    fmt::print(stderr, "error: {}\n", e.what());
    return static_cast<int>(shardplan::ExitCode::RuntimeFailure);
  }
}
