// The optimizer's rules: learning rate, clipping, and fused AdamW on the stretches of a unit.
//
// Step numbers count from 0 here; AdamW's own counter is one more. Source of the rules: PyTorch 2.11, torch.optim.AdamW in its
// fused form and torch.nn.utils.clip_grad_norm_; recorded runs of them in tests/executor/data/trajectories.json.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/workload_spec.h"
#include "executor/rank_state.h"
#include "planner/graph/parameter_table.h"
#include "planner/lowering/unit_layout.h"

namespace shardplan {

// lr * t/W while t < W (the first warm-up step has 0); afterwards constant, linear to 0 at T, or half a cosine.
[[nodiscard]] double learning_rate(const OptimizerSpec& spec, std::int64_t step, std::int64_t total_steps);

// min(1, clip_norm / (grad_norm + 1e-6)).
[[nodiscard]] double clip_factor(double clip_norm, double grad_norm);

// A run of consecutive elements of a rank's stretch with one weight decay.
struct DecayRun {
  std::int64_t start = 0, numel = 0;
  bool decays = true;
  bool operator==(const DecayRun&) const = default;
};
// Covers the stretch without gaps; padding belongs to the run before it.
[[nodiscard]] std::vector<DecayRun> decay_runs(const FlatGroup& group, const ParameterTable& table, const OptimizerSpec& spec,
                                               std::int32_t shard_index);

// One step of AdamW on the runs of one group, in place. Where weights and moments have different dtypes, fp32 copies of at most
// kWidenedPieceNumel elements of what is narrow (Temp); no further memory otherwise. Requires: the step counter holds the step's
// number.
void adamw_step(GroupState& group, const at::Tensor& step_counter, std::span<const DecayRun> runs, const OptimizerSpec& spec,
                double learning_rate);

}  // namespace shardplan
