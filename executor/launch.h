// Who this process is among the ranks, and how the ranks of this machine are started.
//
// Ranks come from torchrun, SLURM or Open MPI (read from the environment, in this order), or are forked here. Forking happens
// before any tensor, thread or socket exists. Output of forked ranks: rank 0's stdout is the answer and passes unchanged; every
// other line goes to stderr behind "[rank3] ". The first failure stops all ranks within seconds and is the one that is reported.
//
// Errors: UsageError for an environment that contradicts itself; Error "rank 3: ..." with the exit code of the rank that failed
// first.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "core/error.h"

namespace shardplan {

struct RankPlace {
  std::int32_t rank = 0;
  std::int32_t world = 1;
  std::int32_t local_rank = 0;  // on this machine; the device index on CUDA
  std::int32_t local_world = 1;
  std::string store_host = "127.0.0.1";
  std::uint16_t store_port = 0;
  bool hosts_store = false;          // rank 0, unless the launcher hosts the store itself
  std::string launcher = "none";     // "none", "execute", "torchrun", "slurm", "openmpi"
  std::string interface;             // network interface for host collectives (GLOO_SOCKET_IFNAME); empty: chosen by the library
  std::filesystem::path error_file;  // where torchrun wants a failure described; empty when nobody asks
};

using Environment = std::function<std::optional<std::string>(const std::string& name)>;
[[nodiscard]] std::optional<std::string> process_environment(const std::string& name);

// Nothing when no launcher started this process.
[[nodiscard]] std::optional<RankPlace> rank_from_environment(const Environment& environment);
// "node[005-007,12],other" -> "node005".
[[nodiscard]] std::string first_host(const std::string& node_list);

// A rank failed because another one went away: never the root cause while there is another failure.
struct PeerLost : DeviceError {
  using DeviceError::DeviceError;
};

// Forks `ranks` processes, runs `body` in each and waits. Returns rank 0's exit code when all ended well: 0, or the nonzero code on
// which all ranks agreed (6, 143). `grace_seconds`: how long ranks may take to end by themselves once one has failed.
[[nodiscard]] int run_local_ranks(std::int32_t ranks, const std::function<int(const RankPlace&)>& body, double grace_seconds = 2.0);

// SIGTERM and SIGINT ask for an orderly end: the run finishes its step. A second SIGINT ends the process at once.
void catch_stop_signals();
[[nodiscard]] bool stop_requested();

// Describes a failure the way torchrun reads it.
void write_error_file(const std::filesystem::path& file, const std::string& message, std::int64_t unix_seconds);

}  // namespace shardplan
