#include "executor/optimizer.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/_fused_adamw.h>

#include <algorithm>
#include <cmath>
#include <numbers>

namespace shardplan {
namespace {

double factor_after_warmup(LrSchedule schedule, double progress) {
  switch (schedule) {
    case LrSchedule::Constant: return 1.0;
    case LrSchedule::Linear: return std::max(0.0, 1.0 - progress);
    case LrSchedule::Cosine: return 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  }
  return 1.0;
}

// The runs that decay, or those that do not: the kernel takes one weight decay for all tensors of a call.
std::vector<at::Tensor> runs_of(const at::Tensor& stretch, std::span<const DecayRun> runs, bool decays) {
  std::vector<at::Tensor> slices;
  for (const DecayRun& run : runs)
    if (run.decays == decays) slices.push_back(stretch.narrow(0, run.start, run.numel));
  return slices;
}

}  // namespace

double learning_rate(const OptimizerSpec& spec, std::int64_t step, std::int64_t total_steps) {
  const std::int64_t warmup = spec.warmup_steps;
  if (step < warmup) return spec.lr * (static_cast<double>(step) / static_cast<double>(warmup));
  const double progress = static_cast<double>(step - warmup) / static_cast<double>(std::max<std::int64_t>(1, total_steps - warmup));
  return spec.lr * factor_after_warmup(spec.schedule, progress);
}

double clip_factor(double clip_norm, double grad_norm) { return std::min(1.0, clip_norm / (grad_norm + 1e-6)); }

std::vector<DecayRun> decay_runs(const FlatGroup& group, const ParameterTable& table, const OptimizerSpec& spec, std::int32_t shard_index) {
  const std::int64_t first = group.stretch_numel * shard_index, end = first + group.stretch_numel;
  std::vector<DecayRun> runs;
  for (const ParameterSlot& slot : group.slots) {
    const bool decays = spec.decay == WeightDecayScope::All || table.parameters[slot.parameter.at()].shape.size() >= 2;
    const std::int64_t from = std::max(first, slot.offset), to = std::min(end, slot.offset + slot.numel);
    if (from >= to) continue;
    if (!runs.empty() && runs.back().decays == decays) {
      runs.back().numel += to - from;
    } else {
      runs.push_back({from - first, to - from, decays});
    }
  }
  if (runs.empty()) runs.push_back({0, 0, true});  // a stretch of padding alone
  runs.back().numel = group.stretch_numel - runs.back().start;
  return runs;
}

void adamw_step(GroupState& group, const at::Tensor& step_counter, std::span<const DecayRun> runs, const OptimizerSpec& spec,
                double learning_rate) {
  const at::Tensor& gradient = group.gradient().flat;
  for (const bool decays : {true, false}) {
    const std::vector<at::Tensor> parameters = runs_of(group.sharded_param.flat, runs, decays);
    if (parameters.empty()) continue;
    const std::vector<at::Tensor> steps(parameters.size(), step_counter);
    at::_fused_adamw_(parameters, runs_of(gradient, runs, decays), runs_of(group.exp_avg.flat, runs, decays),
                      runs_of(group.exp_avg_sq.flat, runs, decays), /*max_exp_avg_sqs=*/{}, steps, learning_rate, spec.beta1, spec.beta2,
                      decays ? spec.weight_decay : 0.0, spec.eps, /*amsgrad=*/false, /*maximize=*/false);
  }
}

}  // namespace shardplan
