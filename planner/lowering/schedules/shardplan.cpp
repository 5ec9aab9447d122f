#include "planner/lowering/schedules/shardplan.h"

#include <algorithm>

#include "core/error.h"

namespace shardplan {
namespace {

constexpr std::int64_t kMostPieceBytes = std::int64_t{4} << 20;
constexpr std::int64_t kNormBytes = 8;       // fp64 sum of squares
constexpr std::int64_t kGroupNormBytes = 4;  // fp32 norm of one group
constexpr std::int64_t kStepCounterBytes = 4;

constexpr int kForwardUse = 0;
constexpr int kBackwardUse = 1;

KernelWork copy_work(DType dtype, std::int64_t read_bytes, std::int64_t written_bytes) {
  return {.compute = ComputeClass::Copy, .dtype = dtype, .read_bytes = read_bytes, .written_bytes = written_bytes};
}

KernelWork pointwise_work(DType dtype, std::int64_t flops, std::int64_t read_bytes, std::int64_t written_bytes) {
  return {.compute = ComputeClass::Elementwise, .dtype = dtype, .flops = flops, .read_bytes = read_bytes, .written_bytes = written_bytes};
}

UnitId unit_id(std::int32_t position) { return UnitId(position); }

BufferKey unit_buffer(BufferUse use, UnitId unit, std::int32_t group = -1, std::int32_t instance = 0) {
  return {.use = use, .unit = unit, .group = group, .instance = instance};
}

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
    case Phase::Load: emit_load(); break;
    case Phase::Step1: emit_step(true); break;
    case Phase::Step2: emit_step(false); break;
    case Phase::Eval: emit_evaluation(); break;
    case Phase::Save: emit_save(); break;
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

// ---- laying out a micro-step ----

void ShardplanSchedule::place_spans() {
  const std::size_t num_segments = bodies_.segments().all.size();
  span_of_.assign(num_segments, -1);
  recomputed_.assign(num_segments, nullptr);
  demand_.assign(num_segments, 0);
  keeps_.clear();
  for (std::size_t i = 0; i < input_->spans.size(); ++i) {
    const SpanPlan& span = input_->spans[i];
    keeps_.push_back(keep_set(span.keep));
    for (std::int32_t s = span.first.value; s <= span.last.value; ++s) span_of_[static_cast<std::size_t>(s)] = static_cast<std::int32_t>(i);
    // From the end of the span: what later segments need again decides what earlier ones run again.
    for (std::int32_t s = span.last.value; s >= span.first.value; --s) {
      const SegmentId segment(s);
      const RecomputedSegment& again = bodies_.recomputed(segment, keeps_.back(), demand_[segment.at()]);
      recomputed_[segment.at()] = &again;
      for (const Demand& demand : again.demands)
        if (demand.segment >= span.first && demand.segment < segment) demand_[demand.segment.at()] |= std::uint64_t{1} << demand.bit;
    }
  }
}

void ShardplanSchedule::add_task(TaskHead head, std::int32_t first_body) {
  ComputeTask task{.head = head,
                   .first_body = first_body,
                   .end_body = static_cast<std::int32_t>(placed_.size()),
                   .first_read = static_cast<std::int32_t>(unit_reads_.size())};
  for (std::int32_t b = task.first_body; b < task.end_body; ++b) {
    for (const ParameterId p : placed_[static_cast<std::size_t>(b)].body->reads) {
      const UnitId unit = (*input_->places)[p.at()].unit;
      if (std::find(unit_reads_.begin() + task.first_read, unit_reads_.end(), unit) == unit_reads_.end()) unit_reads_.push_back(unit);
    }
  }
  task.end_read = static_cast<std::int32_t>(unit_reads_.size());
  tasks_.push_back(task);
}

void ShardplanSchedule::lay_out_forward(bool evaluates) {
  for (std::size_t s = 0; s < bodies_.segments().all.size(); ++s) {
    const SegmentId segment(static_cast<std::int64_t>(s));
    const SegmentBody& body = evaluates              ? bodies_.evaluation(segment)
                              : recomputed_[s] != nullptr ? recomputed_[s]->forward
                                                          : bodies_.forward(segment);
    placed_.push_back({.body = &body});
    add_task({.kind = TaskKind::Forward, .first = segment, .last = segment}, static_cast<std::int32_t>(placed_.size()) - 1);
  }
}

void ShardplanSchedule::lay_out_recompute(std::int32_t span) {
  const SpanPlan& plan = input_->spans[static_cast<std::size_t>(span)];
  const std::int32_t first_body = static_cast<std::int32_t>(placed_.size());
  bool does_work = false;
  for (std::int32_t s = plan.first.value; s <= plan.last.value; ++s) {
    const SegmentBody& body = recomputed_[static_cast<std::size_t>(s)]->recompute;
    if (body.ops.empty()) continue;
    does_work = does_work || !body.kernels.empty();
    placed_.push_back({.body = &body, .span = span});
  }
  if (does_work) add_task({.kind = TaskKind::Recompute, .first = plan.first, .last = plan.last}, first_body);
  else placed_.resize(static_cast<std::size_t>(first_body));
}

void ShardplanSchedule::lay_out_backward() {
  for (std::int32_t s = static_cast<std::int32_t>(bodies_.segments().all.size()) - 1; s >= 0; --s) {
    const SegmentId segment(s);
    if (!bodies_.runs_backward(segment)) continue;
    const std::int32_t span = span_of_[segment.at()];
    if (span >= 0 && input_->spans[static_cast<std::size_t>(span)].last == segment) lay_out_recompute(span);
    placed_.push_back({.body = &bodies_.backward(segment), .span = span});
    if (gradients_stay()) placed_.back().adding = &bodies_.backward_adding(segment);
    add_task({.kind = TaskKind::Backward, .first = segment, .last = segment}, static_cast<std::int32_t>(placed_.size()) - 1);
    for (const ParameterId p : placed_.back().body->contributions) ++unit_states_[(*input_->places)[p.at()].unit.at()].num_contributions;
  }
}

// A unit's gathered time: from its first reader to its last, in forward and in backward apart when it is dropped in between.
void ShardplanSchedule::place_gathers(bool evaluates) {
  uses_.assign(input_->units->size(), {});
  use_order_.clear();
  gathers_.clear();
  frees_.clear();
  if (!gathers()) return;
  for (std::size_t t = 0; t < tasks_.size(); ++t) {
    const int pass = tasks_[t].head.kind == TaskKind::Forward ? kForwardUse : kBackwardUse;
    for (std::int32_t r = tasks_[t].first_read; r < tasks_[t].end_read; ++r) {
      const UnitId unit = unit_reads_[static_cast<std::size_t>(r)];
      UnitUse& use = uses_[unit.at()];
      if (use.first[pass] < 0) {
        use.first[pass] = static_cast<std::int32_t>(t);
        use_order_.push_back({.task = static_cast<std::int32_t>(t), .unit = unit});
      }
      use.last[pass] = static_cast<std::int32_t>(t);
    }
  }
  for (std::size_t i = 0; i < use_order_.size(); ++i) {
    const UnitId unit = use_order_[i].unit;
    UnitUse& use = uses_[unit.at()];
    const bool is_backward = use_order_[i].task != use.first[kForwardUse];
    const bool is_dropped_between = input_->reshard_after_forward[unit.at()] && use.last[kForwardUse] + 1 != use.first[kBackwardUse];
    if (is_backward && use.first[kForwardUse] >= 0 && !is_dropped_between) continue;
    const std::size_t ahead = std::min(i, static_cast<std::size_t>(input_->prefetch));
    const std::int32_t earliest = is_backward ? use.last[kForwardUse] + 1 : 0;
    gathers_.push_back({.task = std::max(use_order_[i - ahead].task, earliest), .unit = unit});
  }
  for (std::int32_t u = 0; u < num_units(); ++u) {
    const UnitUse& use = uses_[static_cast<std::size_t>(u)];
    const bool is_dropped_between =
        input_->reshard_after_forward[static_cast<std::size_t>(u)] && use.last[kForwardUse] + 1 != use.first[kBackwardUse];
    if (use.first[kForwardUse] >= 0 && (evaluates || use.first[kBackwardUse] < 0 || is_dropped_between))
      frees_.push_back({.task = use.last[kForwardUse], .unit = unit_id(u)});
    if (use.first[kBackwardUse] >= 0) frees_.push_back({.task = use.last[kBackwardUse], .unit = unit_id(u)});
  }
  const auto by_task = [](const UnitAtTask& a, const UnitAtTask& b) { return a.task < b.task; };
  std::stable_sort(gathers_.begin(), gathers_.end(), by_task);
  std::stable_sort(frees_.begin(), frees_.end(), by_task);
}

std::int32_t ShardplanSchedule::instance_for(const PlacedBody& placed, const Crossing& crossing) const {
  if (placed.span < 0 || !crossing.made_in.is_set() || crossing.made_by_pass != OpPass::Forward) return 0;
  if (span_of_[crossing.made_in.at()] != placed.span) return 0;
  return keeps_[static_cast<std::size_t>(placed.span)].test(static_cast<std::size_t>(crossing.made_by)) ? 0 : 1;
}

void ShardplanSchedule::find_last_readers() {
  last_reader_.assign(bodies_.crossings().size() * 2, -1);
  for (std::size_t b = 0; b < placed_.size(); ++b) {
    for (const BodyEvent& event : placed_[b].body->decided_outside) {
      if (event.what != Happening::CrossingLastRead) continue;
      const std::int32_t instance = instance_for(placed_[b], bodies_.crossings()[static_cast<std::size_t>(event.index)]);
      last_reader_[static_cast<std::size_t>(event.index * 2 + instance)] = static_cast<std::int32_t>(b);
    }
  }
}

void ShardplanSchedule::lay_out(bool evaluates) {
  tasks_.clear();
  placed_.clear();
  unit_reads_.clear();
  if (evaluates) {
    span_of_.assign(bodies_.segments().all.size(), -1);
    recomputed_.assign(bodies_.segments().all.size(), nullptr);
    lay_out_forward(true);
  } else {
    place_spans();
    lay_out_forward(false);
    lay_out_backward();
  }
  place_gathers(evaluates);
  find_last_readers();
}

// ---- emitting a micro-step ----

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
  unit_states_[unit.at()].gather = sink_->begin({.kind = TaskKind::Gather, .stream = kGatherStream, .micro_step = micro_step, .unit = unit});
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
    while (next_gather < gathers_.size() && gathers_[next_gather].task == index) emit_gather(gathers_[next_gather++].unit, micro_step);
    emit_compute(tasks_[t], index, micro_step);
  }
}

// ---- gradients ----

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
    last_reduction_ = sink_->begin({.kind = TaskKind::AllReduce,
                                    .stream = kReduceStream,
                                    .micro_step = micro_step,
                                    .unit = unit,
                                    .accumulate = accumulates});
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

// [Note: gradients in flight] On CUDA a reduction runs beside the next backward, which allocates its own full gradient. The program says
// so: the full gradient of a unit is freed by the reduction of the next unit, on whose stream the first one has ended for sure, or by the
// task after the last. A backward that takes a full gradient's place waits for the reduction that used the place before. So two are
// counted, and two is all there ever are. On CPU the reduction has ended when its task ends.
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
    const FlatGroup* group = trainable_group(unit_id(u));
    if (group == nullptr) continue;
    sink_->allocate(group_norm, kGroupNormBytes, MemoryCategory::Temp);
    sink_->kernel({.compute = ComputeClass::Reduction,
                   .dtype = input_->precision.stored,
                   .flops = 2 * group->stretch_numel,
                   .read_bytes = stored_bytes(*group),
                   .written_bytes = kGroupNormBytes});
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
    if (const FlatGroup* group = trainable_group(unit_id(u)))
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
  // Reads gradient, parameter, both moments; writes the last three. About a dozen operations an element.
  sink_->kernel(pointwise_work(DType::F32, 12 * group.stretch_numel, 2 * param_bytes + 2 * state_bytes, param_bytes + 2 * state_bytes));
  sink_->end();
}

void ShardplanSchedule::emit_zero_gradients() {
  sink_->begin({.kind = TaskKind::ZeroGrad, .micro_step = input_->grad_accum - 1});
  for (std::int32_t u = 0; u < num_units(); ++u) {
    const UnitId unit = unit_id(u);
    UnitState& state = unit_states_[unit.at()];
    if (state.has_sharded_grad)
      sink_->release(unit_buffer(BufferUse::ShardedGrad, unit, 0), stored_bytes(*trainable_group(unit)));
    if (state.has_full_grad)
      sink_->release(unit_buffer(BufferUse::FullGrad, unit, 0),
                     trainable_group(unit)->padded_numel * element_bytes(input_->precision.reduce));
    state.has_sharded_grad = state.has_full_grad = false;
  }
  sink_->end();
}

// ---- phases ----

void ShardplanSchedule::emit_residents(bool with_states) {
  bool counts_steps = with_states;
  for (const StorageId s : constants_)
    sink_->resident({.use = BufferUse::ConstantBuffer, .storage = s}, bodies_.graph().storage(s).bytes, MemoryCategory::Buffer);
  for (std::int32_t u = 0; u < num_units(); ++u) {
    const std::vector<FlatGroup>& groups = (*input_->units)[static_cast<std::size_t>(u)].groups;
    for (std::size_t g = 0; g < groups.size(); ++g)
      sink_->resident(unit_buffer(BufferUse::ShardedParam, unit_id(u), static_cast<std::int32_t>(g)), stored_bytes(groups[g]),
                      MemoryCategory::ShardedParam);
    const FlatGroup* group = trainable_group(unit_id(u));
    if (!with_states || group == nullptr) continue;
    const std::int64_t state_bytes = group->stretch_numel * element_bytes(input_->precision.state);
    sink_->resident(unit_buffer(BufferUse::ExpAvg, unit_id(u), 0), state_bytes, MemoryCategory::OptState);
    sink_->resident(unit_buffer(BufferUse::ExpAvgSq, unit_id(u), 0), state_bytes, MemoryCategory::OptState);
    if (counts_steps) sink_->resident({.use = BufferUse::StepCounter}, kStepCounterBytes, MemoryCategory::OptState);
    counts_steps = false;
  }
}

void ShardplanSchedule::emit_step(bool is_first) {
  emit_residents(!is_first);
  lay_out(false);
  for (std::int32_t u = 0; u < num_units(); ++u)
    CHECK(trainable_group(unit_id(u)) == nullptr || unit_states_[static_cast<std::size_t>(u)].num_contributions > 0,
          "a unit that trains gets gradients: " + (*input_->units)[static_cast<std::size_t>(u)].name);
  for (std::int32_t a = 0; a < input_->grad_accum; ++a) emit_micro_step(a);
  emit_gradient_norm();
  if (input_->clips) emit_clip();
  bool first_unit = true;
  for (std::int32_t u = 0; u < num_units(); ++u) {
    if (trainable_group(unit_id(u)) == nullptr) continue;
    emit_optimizer(unit_id(u), is_first, first_unit);
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
    sink_->begin({.kind = TaskKind::Load, .unit = unit_id(u)});
    if (u == 0)
      for (const StorageId s : constants_)
        sink_->allocate({.use = BufferUse::ConstantBuffer, .storage = s}, bodies_.graph().storage(s).bytes, MemoryCategory::Buffer);
    std::int64_t largest_bytes = 0;
    const std::vector<FlatGroup>& groups = (*input_->units)[static_cast<std::size_t>(u)].groups;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      sink_->allocate(unit_buffer(BufferUse::ShardedParam, unit_id(u), static_cast<std::int32_t>(g)), stored_bytes(groups[g]),
                      MemoryCategory::ShardedParam);
      largest_bytes = std::max(largest_bytes, stored_bytes(groups[g]));
    }
    const std::int64_t piece_bytes = input_->init == InitPath::Delayed ? std::min(kMostPieceBytes, largest_bytes) : 0;
    for (std::int32_t i = 0; i < 2 && piece_bytes > 0; ++i)
      sink_->allocate(unit_buffer(BufferUse::Piece, unit_id(u), -1, i), piece_bytes, MemoryCategory::Temp);
    for (const FlatGroup& group : groups) sink_->kernel(copy_work(input_->precision.stored, stored_bytes(group), stored_bytes(group)));
    for (std::int32_t i = 0; i < 2 && piece_bytes > 0; ++i) sink_->release(unit_buffer(BufferUse::Piece, unit_id(u), -1, i), piece_bytes);
    sink_->end();
  }
}

void ShardplanSchedule::emit_save() {
  emit_residents(true);
  for (std::int32_t u = 0; u < num_units(); ++u) {
    sink_->begin({.kind = TaskKind::Save, .unit = unit_id(u)});
    std::int64_t largest_bytes = 0;
    const std::vector<FlatGroup>& groups = (*input_->units)[static_cast<std::size_t>(u)].groups;
    for (const FlatGroup& group : groups) largest_bytes = std::max(largest_bytes, stored_bytes(group));
    const std::int64_t piece_bytes = std::min(kMostPieceBytes, largest_bytes);
    for (std::int32_t i = 0; i < 2 && piece_bytes > 0; ++i)
      sink_->allocate(unit_buffer(BufferUse::Piece, unit_id(u), -1, i), piece_bytes, MemoryCategory::Temp);
    for (const FlatGroup& group : groups) sink_->kernel(copy_work(input_->precision.stored, stored_bytes(group), stored_bytes(group)));
    for (std::int32_t i = 0; i < 2 && piece_bytes > 0; ++i) sink_->release(unit_buffer(BufferUse::Piece, unit_id(u), -1, i), piece_bytes);
    sink_->end();
  }
}

}  // namespace shardplan
