#include "executor/optimizer.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "executor/counting_allocator.h"

namespace shardplan {
namespace {

double factor_after_warmup(LrSchedule schedule, double progress) {
  switch (schedule) {
    case LrSchedule::Constant:
      return 1.0;
    case LrSchedule::Linear:
      return std::max(0.0, 1.0 - progress);
    case LrSchedule::Cosine:
      return 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
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

// The kernel reads all four in one dtype. Where weights and moments differ, what is narrow is widened piece by piece.
void adamw_in_pieces(GroupState& group, const at::Tensor& step_counter, std::span<const DecayRun> runs, const OptimizerSpec& spec,
                     double learning_rate) {
  const std::array<at::Tensor, 4> whole = {group.sharded_param.flat, group.gradient().flat, group.exp_avg.flat,
                                           group.exp_avg_sq.flat};
  constexpr std::size_t kGradient = 1;  // read only
  const std::int64_t copies =
      std::count_if(whole.begin(), whole.end(), [](const at::Tensor& t) { return t.scalar_type() != at::kFloat; });
  const std::int64_t piece = std::min(whole[0].numel(), kWidenedPieceNumel);
  const AllocationScope scope(MemoryCategory::Temp);
  const at::Tensor room = at::empty({copies, piece}, whole[0].options().dtype(at::kFloat));
  for (const DecayRun& run : runs) {
    for (std::int64_t done = 0; done < run.numel; done += piece) {
      const std::int64_t numel = std::min(piece, run.numel - done);
      std::array<at::Tensor, 4> narrow, wide;
      std::int64_t row = 0;
      for (std::size_t i = 0; i < whole.size(); ++i) {
        narrow[i] = wide[i] = whole[i].narrow(0, run.start + done, numel);
        if (narrow[i].scalar_type() == at::kFloat) continue;
        wide[i] = room.select(0, row++).narrow(0, 0, numel);
        wide[i].copy_(narrow[i]);
      }
      at::_fused_adamw_(wide[0], wide[1], wide[2], wide[3], /*max_exp_avg_sqs=*/{}, step_counter, learning_rate, spec.beta1,
                        spec.beta2, run.decays ? spec.weight_decay : 0.0, spec.eps, /*amsgrad=*/false, /*maximize=*/false);
      for (std::size_t i = 0; i < whole.size(); ++i)
        if (i != kGradient && narrow[i].scalar_type() != at::kFloat) narrow[i].copy_(wide[i]);
    }
  }
}

}  // namespace

double learning_rate(const OptimizerSpec& spec, std::int64_t step, std::int64_t total_steps) {
  const std::int64_t warmup = spec.warmup_steps;
  if (step < warmup) return spec.lr * (static_cast<double>(step) / static_cast<double>(warmup));
  const double progress = static_cast<double>(step - warmup) / static_cast<double>(std::max<std::int64_t>(1, total_steps - warmup));
  return spec.lr * factor_after_warmup(spec.schedule, progress);
}

double clip_factor(double clip_norm, double grad_norm) { return std::min(1.0, clip_norm / (grad_norm + 1e-6)); }

std::vector<DecayRun> decay_runs(const FlatGroup& group, const ParameterTable& table, const OptimizerSpec& spec,
                                 std::int32_t shard_index) {
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
  if (group.exp_avg.flat.scalar_type() != gradient.scalar_type()) {
    adamw_in_pieces(group, step_counter, runs, spec, learning_rate);
    return;
  }
  for (const bool decays : {true, false}) {
    const std::vector<at::Tensor> parameters = runs_of(group.sharded_param.flat, runs, decays);
    if (parameters.empty()) continue;
    const std::vector<at::Tensor> steps(parameters.size(), step_counter);
    at::_fused_adamw_(parameters, runs_of(gradient, runs, decays), runs_of(group.exp_avg.flat, runs, decays),
                      runs_of(group.exp_avg_sq.flat, runs, decays), /*max_exp_avg_sqs=*/{}, steps, learning_rate, spec.beta1,
                      spec.beta2, decays ? spec.weight_decay : 0.0, spec.eps, /*amsgrad=*/false, /*maximize=*/false);
  }
}

}  // namespace shardplan
