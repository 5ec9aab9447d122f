// The interpreter: runs the tasks of one phase in program order on one rank and measures them.
//
// It decides nothing. Buffers are born and die by the program's effects, ops run through the op table, collectives through the
// interface given. Everything runs in c10::InferenceMode: no autograd graph exists.
//
//   RankState state = make_rank_state(plan, lowered, at::kCPU, shard_index);
//   ProgramRunner load(lowered, Phase::Load, state), step1(lowered, Phase::Step1, state), step2(lowered, Phase::Step2, state);
//   load.run(machine, {});
//   step1.run(machine, input); step2.run(machine, input); ...
//
// Bytes: as docs/schedule_shardplan.md. Errors: CHECK when an op's result does not lie as the graph says; DeviceError from
// collectives.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/timeline.h"
#include "executor/collectives.h"
#include "executor/memory_meter.h"
#include "executor/rank_state.h"
#include "executor/streams.h"
#include "planner/lowering/lowered_program.h"

namespace shardplan {

// How a unit's stored parameters come and go. `pieces` are the program's Piece buffers (one byte tensor each), empty on the simple
// path.
class UnitFiles {
 public:
  virtual ~UnitFiles() = default;
  // Fills the rank's stretches (state.units[unit][group].sharded_param.flat), padding with zeros.
  virtual void load(UnitId unit, std::vector<GroupState>& groups, std::span<const at::Tensor> pieces) = 0;
  virtual void save(UnitId unit, const std::vector<GroupState>& groups, std::span<const at::Tensor> pieces) = 0;
};

// The machine a rank runs on. All members outlive the run; `files` is needed by the load and save phases only.
struct RankMachine {
  Collectives* collectives = nullptr;
  Streams* streams = nullptr;
  MemoryMeter* memory = nullptr;
  UnitFiles* files = nullptr;
};

// One micro-step's sequences, row-major [B, S].
struct MicroBatch {
  std::span<const std::int64_t> ids;
  std::span<const std::int64_t> targets;  // -100: no target
};

struct StepInput {
  std::vector<MicroBatch> micro_batches;  // by micro-step
  std::int64_t num_targets = 1;           // of the whole step, over all data ranks and micro-steps
  double learning_rate = 0;
  bool log_memory = false;  // record every change of memory in the Timeline
};

struct StepResult {
  double loss_sum = 0;   // of this rank: sum of cross entropies over its micro-steps, not divided
  double grad_norm = 0;  // global, before clipping
  Timeline measured;     // levels above RankState::base_bytes
  std::int64_t workspace_peak_bytes = 0;
};

class ProgramRunner {
 public:
  // Prepares views and the order of work once. `plan`, `lowered` and `state` outlive the runner.
  ProgramRunner(const Plan& plan, const Lowered& lowered, Phase phase, RankState& state);
  ~ProgramRunner();
  ProgramRunner(const ProgramRunner&) = delete;
  ProgramRunner& operator=(const ProgramRunner&) = delete;

  [[nodiscard]] StepResult run(RankMachine& machine, const StepInput& input);

 private:
  struct Prepared;
  std::unique_ptr<Prepared> prepared_;
};

}  // namespace shardplan
