// From full gradients to the step: reductions, norm, clipping, optimizer.
#include <algorithm>

#include "planner/lowering/schedules/shardplan.h"
#include "planner/lowering/schedules/unit_work.h"

namespace shardplan {
namespace {

constexpr std::int64_t kNormBytes = 8;       // fp64 sum of squares
constexpr std::int64_t kGroupNormBytes = 4;  // fp32 norm of one group

}  // namespace

void ShardplanSchedule::emit_reductions(const ComputeTask& task, TaskId backward, std::int32_t micro_step) {
  for (const ParameterId p : placed_[static_cast<std::size_t>(task.first_body)].body->contributions) {
    const UnitId unit = (*input_->places)[p.at()].unit;
    if (--unit_states_[unit.at()].contributions_left == 0) emit_reduction(unit, backward, micro_step);
  }
}

void ShardplanSchedule::emit_reduction(UnitId unit, TaskId backward, std::int32_t micro_step) {
  const bool is_last_micro_step = micro_step + 1 == input_->grad_accum;
  const MeshDegrees& mesh = input_->mesh;
  const FlatGroup& group = *trainable_group(unit);
  const std::int64_t reduce = element_bytes(input_->precision.reduce);
  if (full_grad_is_gradient()) {
    if (mesh.replicate == 1 || !is_last_micro_step) return;
    last_reduction_ = sink_->begin({.kind = TaskKind::AllReduce, .stream = kReduceStream, .micro_step = micro_step, .unit = unit});
    sink_->wait(backward);
    sink_->collective({.kind = CollectiveKind::AllReduce, .axis = kReplicateAxis, .bytes = group.padded_numel * reduce});
    sink_->end();
    return;
  }
  if (input_->accum_sync == AccumSync::Last && !is_last_micro_step) return;

  const bool accumulates = unit_states_[unit.at()].has_sharded_grad;
  const bool has_all_reduce = mesh.replicate > 1;
  if (mesh.shard > 1 || !has_all_reduce) {
    last_reduction_ = sink_->begin({.kind = TaskKind::ReduceScatter,
                                    .stream = kReduceStream,
                                    .micro_step = micro_step,
                                    .unit = unit,
                                    .accumulate = accumulates && !has_all_reduce});
    sink_->wait(backward);
    if (mesh.shard > 1)
      sink_->collective({.kind = CollectiveKind::ReduceScatter, .axis = kShardAxis, .bytes = group.padded_numel * reduce});
    if (!has_all_reduce) finish_gradient(unit);
    sink_->end();
  }
  if (has_all_reduce) {
    last_reduction_ = sink_->begin(
        {.kind = TaskKind::AllReduce, .stream = kReduceStream, .micro_step = micro_step, .unit = unit, .accumulate = accumulates});
    sink_->wait(backward);
    sink_->collective({.kind = CollectiveKind::AllReduce, .axis = kReplicateAxis, .bytes = group.stretch_numel * reduce});
    finish_gradient(unit);
    sink_->end();
  }
}

// The end of a unit's last reduction: the own stretch becomes, or joins, the sharded gradient; the full one goes.
void ShardplanSchedule::finish_gradient(UnitId unit) {
  UnitState& state = unit_states_[unit.at()];
  const FlatGroup& group = *trainable_group(unit);
  const DType stored = input_->precision.stored;
  const DType reduce = input_->precision.reduce;
  const std::int64_t shard_bytes = stored_bytes(group);
  const std::int64_t stretch_bytes = group.stretch_numel * element_bytes(reduce);
  if (!state.has_sharded_grad) {
    sink_->allocate(unit_buffer(BufferUse::ShardedGrad, unit, 0), shard_bytes, MemoryCategory::ShardedGrad);
    sink_->kernel(copy_work(stored, stretch_bytes, shard_bytes));
    state.has_sharded_grad = true;
  } else if (reduce == stored) {
    sink_->kernel(pointwise_work(stored, group.stretch_numel, 2 * shard_bytes, shard_bytes));
  } else {
    const BufferKey cast = unit_buffer(BufferUse::Scratch, unit, 0);
    sink_->allocate(cast, shard_bytes, MemoryCategory::ReduceScatter);
    sink_->kernel(copy_work(stored, stretch_bytes, shard_bytes));
    sink_->kernel(pointwise_work(stored, group.stretch_numel, 2 * shard_bytes, shard_bytes));
    sink_->release(cast, shard_bytes);
  }
  // See [Note: gradients in flight].
  const bool may_still_run = input_->device == DeviceKind::Cuda && input_->mesh.shard * input_->mesh.replicate > 1;
  if (may_still_run) {
    release_waiting_gradient();
    waiting_gradient_ = unit;
    waiting_reduction_ = last_reduction_;
    return;
  }
  sink_->release(unit_buffer(BufferUse::FullGrad, unit, 0), group.padded_numel * element_bytes(reduce));
  state.has_full_grad = false;
}

// [Note: gradients in flight] On CUDA a reduction runs beside the next backward, which allocates its own full gradient. The program
// says so: the full gradient of a unit is freed by the reduction of the next unit, on whose stream the first one has ended for
// sure, or by the task after the last. A backward that takes a full gradient's place waits for the reduction that used the place
// before. So two are counted, and two is all there ever are. On CPU the reduction has ended when its task ends.
void ShardplanSchedule::release_waiting_gradient() {
  if (!waiting_gradient_.is_set()) return;
  sink_->release(unit_buffer(BufferUse::FullGrad, waiting_gradient_, 0),
                 trainable_group(waiting_gradient_)->padded_numel * element_bytes(input_->precision.reduce));
  unit_states_[waiting_gradient_.at()].has_full_grad = false;
  finished_reduction_ = waiting_reduction_;
  waiting_gradient_ = {};
}

void ShardplanSchedule::emit_gradient_norm() {
  const BufferKey sum{.use = BufferUse::NormScalar, .instance = 0};
  const BufferKey group_norm{.use = BufferUse::NormScalar, .instance = 1};
  sink_->begin({.kind = TaskKind::GradNorm, .micro_step = input_->grad_accum - 1});
  if (last_reduction_.is_set()) sink_->wait(last_reduction_);
  sink_->allocate(sum, kNormBytes, MemoryCategory::Temp);
  for (std::int32_t u = 0; u < num_units(); ++u) {
    const FlatGroup* group = trainable_group(UnitId(u));
    if (group == nullptr) continue;
    // The CPU kernel sums in fp32, over a copy where gradients are stored in 16 bits.
    const bool copies = input_->device == DeviceKind::Cpu && input_->precision.stored != DType::F32;
    const BufferKey copy = unit_buffer(BufferUse::Scratch, UnitId(u), 0);
    const std::int64_t copy_bytes = group->stretch_numel * element_bytes(DType::F32);
    if (copies) sink_->allocate(copy, copy_bytes, MemoryCategory::Temp);
    sink_->allocate(group_norm, kGroupNormBytes, MemoryCategory::Temp);
    sink_->kernel({.compute = ComputeClass::Reduction,
                   .dtype = input_->precision.stored,
                   .flops = 2 * group->stretch_numel,
                   .read_bytes = stored_bytes(*group),
                   .written_bytes = kGroupNormBytes});
    if (copies) sink_->release(copy, copy_bytes);
    sink_->release(group_norm, kGroupNormBytes);
  }
  if (input_->mesh.shard > 1) sink_->collective({.kind = CollectiveKind::AllReduce, .axis = kShardAxis, .bytes = kNormBytes});
  sink_->release(sum, kNormBytes);
  release_waiting_gradient();
  sink_->end();
}

void ShardplanSchedule::emit_clip() {
  sink_->begin({.kind = TaskKind::ClipGrad, .micro_step = input_->grad_accum - 1});
  for (std::int32_t u = 0; u < num_units(); ++u) {
    if (const FlatGroup* group = trainable_group(UnitId(u)))
      sink_->kernel(pointwise_work(input_->precision.stored, group->stretch_numel, stored_bytes(*group), stored_bytes(*group)));
  }
  sink_->end();
}

void ShardplanSchedule::emit_optimizer(UnitId unit, bool is_first, bool first_unit) {
  const FlatGroup& group = *trainable_group(unit);
  const std::int64_t state_bytes = group.stretch_numel * element_bytes(input_->precision.state);
  const std::int64_t param_bytes = stored_bytes(group);
  sink_->begin({.kind = TaskKind::OptimizerStep, .micro_step = input_->grad_accum - 1, .unit = unit});
  if (is_first) {
    sink_->allocate(unit_buffer(BufferUse::ExpAvg, unit, 0), state_bytes, MemoryCategory::OptState);
    sink_->allocate(unit_buffer(BufferUse::ExpAvgSq, unit, 0), state_bytes, MemoryCategory::OptState);
    if (first_unit) sink_->allocate({.use = BufferUse::StepCounter}, kStepCounterBytes, MemoryCategory::OptState);
  }
  const Precision& precision = input_->precision;
  const BufferKey widened = unit_buffer(BufferUse::Scratch, unit, 0);
  const std::int64_t copies = (precision.stored == DType::F32 ? 0 : 2) + (precision.state == DType::F32 ? 0 : 2);
  const std::int64_t widened_bytes = precision.stored == precision.state
                                         ? 0
                                         : copies * std::min(group.stretch_numel, kWidenedPieceNumel) * element_bytes(DType::F32);
  if (widened_bytes > 0) {
    sink_->allocate(widened, widened_bytes, MemoryCategory::Temp);
    // Into the copies, and out of all but the gradient's.
    const std::int64_t narrow_bytes =
        (precision.stored == DType::F32 ? 0 : 2 * param_bytes) + (precision.state == DType::F32 ? 0 : 2 * state_bytes);
    sink_->kernel(copy_work(DType::F32, 2 * narrow_bytes, 4 * narrow_bytes));
  }
  // Reads gradient, parameter, both moments; writes the last three. About a dozen operations an element.
  sink_->kernel(
      pointwise_work(DType::F32, 12 * group.stretch_numel, 2 * param_bytes + 2 * state_bytes, param_bytes + 2 * state_bytes));
  if (widened_bytes > 0) sink_->release(widened, widened_bytes);
  sink_->end();
}

void ShardplanSchedule::emit_zero_gradients() {
  sink_->begin({.kind = TaskKind::ZeroGrad, .micro_step = input_->grad_accum - 1});
  for (std::int32_t u = 0; u < num_units(); ++u) {
    const UnitId unit = UnitId(u);
    UnitState& state = unit_states_[unit.at()];
    if (state.has_sharded_grad) sink_->release(unit_buffer(BufferUse::ShardedGrad, unit, 0), stored_bytes(*trainable_group(unit)));
    if (state.has_full_grad)
      sink_->release(unit_buffer(BufferUse::FullGrad, unit, 0),
                     trainable_group(unit)->padded_numel * element_bytes(input_->precision.reduce));
    state.has_sharded_grad = state.has_full_grad = false;
  }
  sink_->end();
}

}  // namespace shardplan
