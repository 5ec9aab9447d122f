// What happens in a micro-step, decided before anything is emitted: compute tasks, gathers and drops, last readers.
#include <algorithm>

#include "planner/lowering/schedules/shardplan.h"

namespace shardplan {

void ShardplanSchedule::place_spans() {
  const std::size_t num_segments = bodies_.segments().all.size();
  span_of_.assign(num_segments, -1);
  recomputed_.assign(num_segments, nullptr);
  demand_.assign(num_segments, 0);
  keeps_.clear();
  for (std::size_t i = 0; i < input_->spans.size(); ++i) {
    const SpanPlan& span = input_->spans[i];
    keeps_.push_back(keep_set(span.keep));
    for (std::int32_t s = span.first.value; s <= span.last.value; ++s)
      span_of_[static_cast<std::size_t>(s)] = static_cast<std::int32_t>(i);
    // From the end of the span: what later segments need again decides what earlier ones run again.
    for (std::int32_t s = span.last.value; s >= span.first.value; --s) {
      const SegmentId segment(s);
      const RecomputedSegment& again = bodies_.recomputed(segment, keeps_.back(), demand_[segment.at()]);
      recomputed_[segment.at()] = &again;
      for (const Demand& demand : again.demands)
        if (demand.segment >= span.first && demand.segment < segment)
          demand_[demand.segment.at()] |= std::uint64_t{1} << demand.bit;
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
      if (std::find(unit_reads_.begin() + task.first_read, unit_reads_.end(), unit) == unit_reads_.end())
        unit_reads_.push_back(unit);
    }
  }
  task.end_read = static_cast<std::int32_t>(unit_reads_.size());
  tasks_.push_back(task);
}

void ShardplanSchedule::lay_out_forward(bool evaluates) {
  for (std::size_t s = 0; s < bodies_.segments().all.size(); ++s) {
    const SegmentId segment(static_cast<std::int64_t>(s));
    const SegmentBody& body = evaluates                   ? bodies_.evaluation(segment)
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
  if (does_work)
    add_task({.kind = TaskKind::Recompute, .first = plan.first, .last = plan.last}, first_body);
  else
    placed_.resize(static_cast<std::size_t>(first_body));
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
    for (const ParameterId p : placed_.back().body->contributions)
      ++unit_states_[(*input_->places)[p.at()].unit.at()].num_contributions;
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
    const bool is_dropped_between =
        input_->reshard_after_forward[unit.at()] && use.last[kForwardUse] + 1 != use.first[kBackwardUse];
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
      frees_.push_back({.task = use.last[kForwardUse], .unit = UnitId(u)});
    if (use.first[kBackwardUse] >= 0) frees_.push_back({.task = use.last[kBackwardUse], .unit = UnitId(u)});
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

}  // namespace shardplan
