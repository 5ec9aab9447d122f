// One rank's run of a plan: load, step 1, step 2 over and over, evaluation, save; then what was measured beside what was predicted.
//
// Ranks first agree about the plan, the settings and the data; only then does data move. Loss of a step: sum of cross entropies
// over all ranks and micro-steps, divided by the step's targets. A stop signal ends the run after the step on which all ranks see
// it; nothing is saved then. Answer on stdout of rank 0: the table predicted | measured, or report.json's document. Lines of steps
// go to stderr. Errors: as of the parts; PeerLost when another rank is gone.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/hardware_spec.h"
#include "executor/launch.h"
#include "executor/safetensors_writer.h"
#include "planner/lowering/plan.h"

namespace shardplan {

struct RunRequest {
  Plan plan;              // with what the command line overrides
  std::string plan_hash;  // of the plan file
  HardwareSpec hardware;  // gives predicted times
  std::filesystem::path model_directory;
  std::filesystem::path out;
  std::vector<std::filesystem::path> data, eval_data;
  std::int32_t steps = 0;
  std::int32_t log_every = 10;
  std::int64_t max_file_bytes = kMaxFileBytes;
  std::chrono::seconds timeout{600};  // for one answer of another rank
  bool prints_json = false;
};

inline constexpr int kStoppedBySignal = 143;  // 128 + SIGTERM

// 0, ToleranceExceeded when prediction and measurement differ, or kStoppedBySignal.
[[nodiscard]] int run_rank(const RunRequest& request, const RankPlace& place);

}  // namespace shardplan
