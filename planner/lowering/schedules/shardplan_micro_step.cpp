// One micro-step: input, gathers, forward, recompute and backward, drops.
#include "planner/lowering/schedules/shardplan.h"
#include "planner/lowering/schedules/unit_work.h"

namespace shardplan {

void ShardplanSchedule::emit_inputs(std::int32_t micro_step) {
  sink_->begin({.kind = TaskKind::Input, .micro_step = micro_step});
  if (waiting_gradient_.is_set()) sink_->wait(waiting_reduction_);
  release_waiting_gradient();
  for (const std::int32_t c : input_crossings_) {
    const Crossing& crossing = bodies_.crossings()[static_cast<std::size_t>(c)];
    const BufferKey key{.use = BufferUse::GraphStorage, .storage = crossing.storage};
    sink_->allocate(key, crossing.bytes, MemoryCategory::Inputs);
    if (last_reader_[static_cast<std::size_t>(c * 2)] < 0) sink_->release(key, crossing.bytes);
  }
  sink_->end();
}

void ShardplanSchedule::emit_gather(UnitId unit, std::int32_t micro_step) {
  unit_states_[unit.at()].gather =
      sink_->begin({.kind = TaskKind::Gather, .stream = kGatherStream, .micro_step = micro_step, .unit = unit});
  if (last_free_.is_set() && last_free_ != free_waited_on_) sink_->wait(last_free_);
  free_waited_on_ = last_free_;
  const std::int64_t compute = element_bytes(input_->precision.compute);
  std::int64_t gathered_bytes = 0;
  const std::vector<FlatGroup>& groups = (*input_->units)[unit.at()].groups;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    sink_->allocate(unit_buffer(BufferUse::GatheredParam, unit, static_cast<std::int32_t>(g)), groups[g].padded_numel * compute,
                    MemoryCategory::UnshardedParam);
    gathered_bytes += groups[g].padded_numel * compute;
  }
  for (const FlatGroup& group : groups)
    sink_->kernel(copy_work(input_->precision.compute, stored_bytes(group), group.stretch_numel * compute));
  if (input_->mesh.shard > 1) sink_->collective({.kind = CollectiveKind::AllGather, .axis = kShardAxis, .bytes = gathered_bytes});
  sink_->end();
}

void ShardplanSchedule::emit_free(UnitId unit, std::int32_t micro_step) {
  last_free_ = sink_->begin({.kind = TaskKind::Free, .micro_step = micro_step, .unit = unit});
  const std::vector<FlatGroup>& groups = (*input_->units)[unit.at()].groups;
  for (std::size_t g = 0; g < groups.size(); ++g)
    sink_->release(unit_buffer(BufferUse::GatheredParam, unit, static_cast<std::int32_t>(g)),
                   groups[g].padded_numel * element_bytes(input_->precision.compute));
  sink_->end();
}

void ShardplanSchedule::emit_body(const PlacedBody& placed, std::int32_t body_index, bool adds) {
  const SegmentBody& body = adds ? *placed.adding : *placed.body;
  decisions_.clear();
  for (const BodyEvent& event : body.decided_outside) {
    OutsideDecision decision;
    if (event.what == Happening::GradientWrite) {
      const ParameterPlace& place = (*input_->places)[static_cast<std::size_t>(event.index)];
      UnitState& state = unit_states_[place.unit.at()];
      if (!state.has_full_grad) {
        state.has_full_grad = true;
        const FlatGroup& group = (*input_->units)[place.unit.at()].groups[static_cast<std::size_t>(place.group)];
        decision = {.happens = true,
                    .unit = place.unit,
                    .group = place.group,
                    .bytes = group.padded_numel * element_bytes(input_->precision.reduce)};
        if (finished_reduction_.is_set()) sink_->wait(finished_reduction_);
      }
    } else {
      decision.instance = instance_for(placed, bodies_.crossings()[static_cast<std::size_t>(event.index)]);
      decision.happens = event.what == Happening::CrossingAllocate ||
                         last_reader_[static_cast<std::size_t>(event.index * 2 + decision.instance)] == body_index;
    }
    decisions_.push_back(decision);
  }
  sink_->body(body, decisions_);
}

void ShardplanSchedule::emit_compute(const ComputeTask& task, std::int32_t index, std::int32_t micro_step) {
  TaskHead head = task.head;
  head.micro_step = micro_step;
  const TaskId id = sink_->begin(head);
  const int pass = head.kind == TaskKind::Forward ? kForwardUse : kBackwardUse;
  if (gathers()) {
    for (std::int32_t r = task.first_read; r < task.end_read; ++r) {
      const UnitId unit = unit_reads_[static_cast<std::size_t>(r)];
      if (uses_[unit.at()].first[pass] == index) sink_->wait(unit_states_[unit.at()].gather);
    }
  }
  for (std::int32_t b = task.first_body; b < task.end_body; ++b) {
    const PlacedBody& placed = placed_[static_cast<std::size_t>(b)];
    emit_body(placed, b, micro_step > 0 && placed.adding != nullptr);
  }
  sink_->end();
  while (next_free_ < frees_.size() && frees_[next_free_].task == index) emit_free(frees_[next_free_++].unit, micro_step);
  if (head.kind == TaskKind::Backward) emit_reductions(task, id, micro_step);
}

void ShardplanSchedule::emit_micro_step(std::int32_t micro_step) {
  for (UnitState& state : unit_states_) state.contributions_left = state.num_contributions;
  emit_inputs(micro_step);
  next_free_ = 0;
  std::size_t next_gather = 0;
  for (std::size_t t = 0; t < tasks_.size(); ++t) {
    const std::int32_t index = static_cast<std::int32_t>(t);
    while (next_gather < gathers_.size() && gathers_[next_gather].task == index)
      emit_gather(gathers_[next_gather++].unit, micro_step);
    emit_compute(tasks_[t], index, micro_step);
  }
}

}  // namespace shardplan
