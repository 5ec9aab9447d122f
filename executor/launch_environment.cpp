#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "core/write_file.h"
#include "executor/launch.h"

namespace shardplan {
namespace {

// Reads the integers that launchers put into the environment.
class LauncherVariables {
 public:
  LauncherVariables(const Environment& environment, std::string launcher)
      : environment_(environment), launcher_(std::move(launcher)) {}

  [[nodiscard]] std::int32_t integer(const std::string& name) const {
    const std::optional<std::string> text = environment_(name);
    if (!text) {
      throw UsageError(fmt::format("environment variable {} is not set", name), fmt::format("environment of {}", launcher_),
                       fmt::format("start the ranks with {}, or unset its other variables", launcher_));
    }
    std::int32_t value = 0;
    const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
    if (error != std::errc{} || end != text->data() + text->size() || value < 0) {
      throw UsageError(fmt::format("environment variable {} is '{}', expected a number from 0", name, *text),
                       fmt::format("environment of {}", launcher_));
    }
    return value;
  }
  [[nodiscard]] std::int32_t integer_or(const std::string& name, std::int32_t otherwise) const {
    return environment_(name) ? integer(name) : otherwise;
  }
  [[nodiscard]] std::string text_or(const std::string& name, std::string otherwise) const {
    return environment_(name).value_or(std::move(otherwise));
  }

 private:
  const Environment& environment_;
  std::string launcher_;
};

void check_place(const RankPlace& place) {
  if (place.rank < place.world && place.local_rank < place.local_world) return;
  throw UsageError(
      fmt::format("rank {} of {} (local {} of {}) does not exist", place.rank, place.world, place.local_rank, place.local_world),
      fmt::format("environment of {}", place.launcher));
}

RankPlace from_torchrun(const Environment& environment) {
  const LauncherVariables v(environment, "torchrun");
  RankPlace p{
      .rank = v.integer("RANK"), .world = v.integer("WORLD_SIZE"), .local_rank = v.integer("LOCAL_RANK"), .launcher = "torchrun"};
  p.local_world = v.integer_or("LOCAL_WORLD_SIZE", p.world);
  p.store_host = v.text_or("MASTER_ADDR", "");
  p.store_port = static_cast<std::uint16_t>(v.integer("MASTER_PORT"));
  if (p.store_host.empty())
    throw UsageError("environment variable MASTER_ADDR is not set", "environment of torchrun", "start the ranks with torchrun");
  // The agent's store serves all ranks, 0 included, exactly when it says so.
  p.hosts_store = p.rank == 0 && v.text_or("TORCHELASTIC_USE_AGENT_STORE", "") != "True";
  p.error_file = v.text_or("TORCHELASTIC_ERROR_FILE", "");
  return p;
}

RankPlace from_slurm(const Environment& environment) {
  const LauncherVariables v(environment, "slurm");
  RankPlace p{.rank = v.integer("SLURM_PROCID"),
              .world = v.integer("SLURM_NTASKS"),
              .local_rank = v.integer("SLURM_LOCALID"),
              .launcher = "slurm"};
  if (p.world > 1 && !environment("SLURM_NTASKS_PER_NODE")) {
    throw UsageError("SLURM_NTASKS is set without SLURM_NTASKS_PER_NODE", "environment of slurm",
                     "give srun or sbatch --ntasks-per-node, the GPUs of a node");
  }
  p.local_world = v.integer_or("SLURM_NTASKS_PER_NODE", p.world);
  p.store_host = v.text_or("MASTER_ADDR", first_host(v.text_or("SLURM_NODELIST", v.text_or("SLURM_JOB_NODELIST", "127.0.0.1"))));
  // Job numbers differ, so do their ports: the last four digits above 15000.
  p.store_port = static_cast<std::uint16_t>(v.integer_or("MASTER_PORT", 15000 + v.integer("SLURM_JOB_ID") % 10000));
  p.hosts_store = p.rank == 0;
  return p;
}

RankPlace from_openmpi(const Environment& environment) {
  const LauncherVariables v(environment, "openmpi");
  RankPlace p{.rank = v.integer("OMPI_COMM_WORLD_RANK"),
              .world = v.integer("OMPI_COMM_WORLD_SIZE"),
              .local_rank = v.integer("OMPI_COMM_WORLD_LOCAL_RANK"),
              .launcher = "openmpi"};
  p.local_world = v.integer("OMPI_COMM_WORLD_LOCAL_SIZE");
  p.store_host = v.text_or("MASTER_ADDR", p.local_world == p.world ? "127.0.0.1" : "");
  if (p.store_host.empty()) {
    throw UsageError("ranks run on several machines and MASTER_ADDR is not set", "environment of openmpi",
                     "mpirun -x MASTER_ADDR=HOST -x MASTER_PORT=29500");
  }
  p.store_port = static_cast<std::uint16_t>(v.integer_or("MASTER_PORT", 29500));
  p.hosts_store = p.rank == 0;
  return p;
}

}  // namespace

std::optional<std::string> process_environment(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

std::string first_host(const std::string& node_list) {
  const std::size_t end = node_list.find_first_of(", ");
  const std::size_t bracket = node_list.find('[');
  if (bracket == std::string::npos || end < bracket) return node_list.substr(0, end);
  const std::size_t number_end = node_list.find_first_of("-,]", bracket);
  return node_list.substr(0, bracket) + node_list.substr(bracket + 1, number_end - bracket - 1);
}

std::optional<RankPlace> rank_from_environment(const Environment& environment) {
  std::optional<RankPlace> place;
  const std::string job = environment("SLURM_JOB_NAME").value_or("");
  if (environment("RANK") && environment("WORLD_SIZE")) {
    place = from_torchrun(environment);
  } else if (environment("SLURM_PROCID") && environment("SLURM_NTASKS") && job != "bash" && job != "interactive") {
    place = from_slurm(environment);  // those two job names are shells inside an allocation, not started by srun
  } else if (environment("OMPI_COMM_WORLD_RANK")) {
    place = from_openmpi(environment);
  }
  if (place) {
    check_place(*place);
    place->interface = environment("GLOO_SOCKET_IFNAME").value_or("");
  }
  return place;
}

void write_error_file(const std::filesystem::path& file, const std::string& message, std::int64_t unix_seconds) {
  nlohmann::ordered_json document;
  document["message"]["message"] = message;
  document["message"]["extraInfo"]["py_callstack"] = "";
  document["message"]["extraInfo"]["timestamp"] = std::to_string(unix_seconds);
  write_file_whole(file, document.dump());
}

}  // namespace shardplan
