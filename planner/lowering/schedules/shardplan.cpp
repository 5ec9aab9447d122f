#include "planner/lowering/schedules/shardplan.h"

#include <algorithm>

#include "core/error.h"
#include "planner/lowering/schedules/unit_work.h"

namespace shardplan {
namespace {

constexpr std::int64_t kMostPieceBytes = std::int64_t{4} << 20;

}  // namespace

ScheduleInput schedule_input(const Plan& plan, const std::vector<UnitLayout>& units, const std::vector<ParameterPlace>& places) {
  ScheduleInput input{.units = &units,
                      .places = &places,
                      .spans = plan.spans,
                      .device = plan.device,
                      .precision = plan.workload.precision,
                      .mesh = plan.mesh,
                      .grad_accum = plan.grad_accum,
                      .accum_sync = plan.accum_sync,
                      .prefetch = plan.prefetch,
                      .init = plan.init,
                      .clips = plan.workload.optimizer.clip_norm > 0};
  for (const UnitLayout& unit : units) input.reshard_after_forward.push_back(unit.reshard_after_forward);
  return input;
}

ShardplanSchedule::ShardplanSchedule(SegmentBodies& bodies) : bodies_(bodies) {
  const OpGraph& graph = bodies.graph();
  for (std::size_t i = 0; i < graph.storages.size(); ++i)
    if (graph.storages[i].role == StorageRole::Buffer) constants_.emplace_back(static_cast<std::int64_t>(i));
  for (std::size_t i = 0; i < bodies.crossings().size(); ++i)
    if (!bodies.crossings()[i].made_in.is_set()) input_crossings_.push_back(static_cast<std::int32_t>(i));
}

void ShardplanSchedule::emit(const ScheduleInput& input, Phase phase, TaskSink& sink) {
  input_ = &input;
  sink_ = &sink;
  last_free_ = free_waited_on_ = last_reduction_ = waiting_reduction_ = finished_reduction_ = {};
  waiting_gradient_ = {};
  unit_states_.assign(input.units->size(), {});
  switch (phase) {
    case Phase::Load:
      emit_load();
      break;
    case Phase::Step1:
      emit_step(true);
      break;
    case Phase::Step2:
      emit_step(false);
      break;
    case Phase::Eval:
      emit_evaluation();
      break;
    case Phase::Save:
      emit_save();
      break;
  }
}

// ---- what a plan means for this schedule ----

const FlatGroup* ShardplanSchedule::trainable_group(UnitId unit) const {
  const std::vector<FlatGroup>& groups = (*input_->units)[unit.at()].groups;
  return !groups.empty() && groups.front().trainable ? &groups.front() : nullptr;
}

// With one shard and equal dtypes the stored shard is the gathered parameter.
bool ShardplanSchedule::gathers() const { return input_->mesh.shard > 1 || input_->precision.stored != input_->precision.compute; }

bool ShardplanSchedule::full_grad_is_gradient() const {
  return input_->mesh.shard == 1 && input_->precision.reduce == input_->precision.stored;
}

// Full gradients live through the micro-steps, further ones add to them.
bool ShardplanSchedule::gradients_stay() const {
  return input_->grad_accum > 1 && (input_->accum_sync == AccumSync::Last || full_grad_is_gradient());
}

std::int64_t ShardplanSchedule::stored_bytes(const FlatGroup& group) const {
  return group.stretch_numel * element_bytes(input_->precision.stored);
}

// ---- phases ----

void ShardplanSchedule::emit_residents(bool with_states) {
  bool counts_steps = with_states;
  for (const StorageId s : constants_)
    sink_->resident({.use = BufferUse::ConstantBuffer, .storage = s}, bodies_.graph().storage(s).bytes, MemoryCategory::Buffer);
  for (std::int32_t u = 0; u < num_units(); ++u) {
    const std::vector<FlatGroup>& groups = (*input_->units)[static_cast<std::size_t>(u)].groups;
    for (std::size_t g = 0; g < groups.size(); ++g)
      sink_->resident(unit_buffer(BufferUse::ShardedParam, UnitId(u), static_cast<std::int32_t>(g)), stored_bytes(groups[g]),
                      MemoryCategory::ShardedParam);
    const FlatGroup* group = trainable_group(UnitId(u));
    if (!with_states || group == nullptr) continue;
    const std::int64_t state_bytes = group->stretch_numel * element_bytes(input_->precision.state);
    sink_->resident(unit_buffer(BufferUse::ExpAvg, UnitId(u), 0), state_bytes, MemoryCategory::OptState);
    sink_->resident(unit_buffer(BufferUse::ExpAvgSq, UnitId(u), 0), state_bytes, MemoryCategory::OptState);
    if (counts_steps) sink_->resident({.use = BufferUse::StepCounter}, kStepCounterBytes, MemoryCategory::OptState);
    counts_steps = false;
  }
}

void ShardplanSchedule::emit_step(bool is_first) {
  emit_residents(!is_first);
  lay_out(false);
  for (std::int32_t u = 0; u < num_units(); ++u)
    CHECK(trainable_group(UnitId(u)) == nullptr || unit_states_[static_cast<std::size_t>(u)].num_contributions > 0,
          "a unit that trains gets gradients: " + (*input_->units)[static_cast<std::size_t>(u)].name);
  for (std::int32_t a = 0; a < input_->grad_accum; ++a) emit_micro_step(a);
  emit_gradient_norm();
  if (input_->clips) emit_clip();
  bool first_unit = true;
  for (std::int32_t u = 0; u < num_units(); ++u) {
    if (trainable_group(UnitId(u)) == nullptr) continue;
    emit_optimizer(UnitId(u), is_first, first_unit);
    first_unit = false;
  }
  emit_zero_gradients();
}

void ShardplanSchedule::emit_evaluation() {
  emit_residents(true);
  lay_out(true);
  emit_micro_step(0);
}

void ShardplanSchedule::emit_load() {
  for (std::int32_t u = 0; u < num_units(); ++u) {
    sink_->begin({.kind = TaskKind::Load, .unit = UnitId(u)});
    if (u == 0)
      for (const StorageId s : constants_)
        sink_->allocate({.use = BufferUse::ConstantBuffer, .storage = s}, bodies_.graph().storage(s).bytes, MemoryCategory::Buffer);
    std::int64_t largest_bytes = 0;
    const std::vector<FlatGroup>& groups = (*input_->units)[static_cast<std::size_t>(u)].groups;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      sink_->allocate(unit_buffer(BufferUse::ShardedParam, UnitId(u), static_cast<std::int32_t>(g)), stored_bytes(groups[g]),
                      MemoryCategory::ShardedParam);
      largest_bytes = std::max(largest_bytes, stored_bytes(groups[g]));
    }
    const std::int64_t piece_bytes = input_->init == InitPath::Delayed ? std::min(kMostPieceBytes, largest_bytes) : 0;
    for (std::int32_t i = 0; i < 2 && piece_bytes > 0; ++i)
      sink_->allocate(unit_buffer(BufferUse::Piece, UnitId(u), -1, i), piece_bytes, MemoryCategory::Temp);
    for (const FlatGroup& group : groups)
      sink_->kernel(copy_work(input_->precision.stored, stored_bytes(group), stored_bytes(group)));
    for (std::int32_t i = 0; i < 2 && piece_bytes > 0; ++i)
      sink_->release(unit_buffer(BufferUse::Piece, UnitId(u), -1, i), piece_bytes);
    sink_->end();
  }
}

void ShardplanSchedule::emit_save() {
  emit_residents(true);
  for (std::int32_t u = 0; u < num_units(); ++u) {
    sink_->begin({.kind = TaskKind::Save, .unit = UnitId(u)});
    std::int64_t largest_bytes = 0;
    const std::vector<FlatGroup>& groups = (*input_->units)[static_cast<std::size_t>(u)].groups;
    for (const FlatGroup& group : groups) largest_bytes = std::max(largest_bytes, stored_bytes(group));
    const std::int64_t piece_bytes = std::min(kMostPieceBytes, largest_bytes);
    for (std::int32_t i = 0; i < 2 && piece_bytes > 0; ++i)
      sink_->allocate(unit_buffer(BufferUse::Piece, UnitId(u), -1, i), piece_bytes, MemoryCategory::Temp);
    for (const FlatGroup& group : groups)
      sink_->kernel(copy_work(input_->precision.stored, stored_bytes(group), stored_bytes(group)));
    for (std::int32_t i = 0; i < 2 && piece_bytes > 0; ++i)
      sink_->release(unit_buffer(BufferUse::Piece, UnitId(u), -1, i), piece_bytes);
    sink_->end();
  }
}

}  // namespace shardplan
