#include "planner/lowering/lowered_program.h"

#include <fmt/format.h>

#include <utility>

#include "core/error.h"
#include "planner/lowering/program_builder.h"
#include "planner/lowering/schedules/shardplan.h"

namespace shardplan {
namespace {

// The first segment makes the tables that all others read; it is never run again.
void require_lawful_spans(const Plan& plan, const Segments& segments) {
  std::int32_t next = 1;
  for (const SpanPlan& span : plan.spans) {
    if (span.first.value < 1)
      throw ConfigError("a recomputed span holds the first segment, which makes the tables that all others read", "plan#/spans",
                        "start the span at segment 1 or later");
    if (span.last.at() >= segments.all.size() || span.last < span.first)
      throw ConfigError(fmt::format("a recomputed span reaches from segment {} to {}, the model has {}", span.first.value,
                                    span.last.value, segments.all.size()),
                        "plan#/spans", "plan again for this model");
    if (span.first.value < next)
      throw ConfigError(
          fmt::format("segment {} is in two recomputed spans, or the spans are not in ascending order", span.first.value),
          "plan#/spans", "name each segment in one span, lowest first");
    next = span.last.value + 1;
  }
}

void require_buildable(const Plan& plan) {
  if (plan.mesh.shard < 1 || plan.mesh.replicate < 1 || plan.mesh.tp != 1)
    throw ConfigError(fmt::format("degrees shard {}, replicate {}, tp {} make no mesh of this schedule", plan.mesh.shard,
                                  plan.mesh.replicate, plan.mesh.tp),
                      "plan#/mesh", "shard and replicate from 1, tp 1");
  if (plan.grad_accum < 1)
    throw ConfigError(fmt::format("{} micro-steps make no step", plan.grad_accum), "plan#/grad_accum", "give 1 or more");
}

Lowered lower_with(const Plan& plan, std::shared_ptr<const OpGraph> graph, const Segments& segments, SegmentBodies& bodies,
                   Labels labels) {
  require_buildable(plan);
  require_lawful_spans(plan, segments);
  Lowered lowered;
  lowered.graph = std::move(graph);
  lowered.segments = segments;
  lowered.units = unit_layouts(*lowered.graph, lowered.segments, plan);
  lowered.places = parameter_places(*lowered.graph, lowered.units);

  ShardplanSchedule schedule(bodies);
  const ScheduleInput input = schedule_input(plan, lowered.units, lowered.places);
  const ProgramNames names{.graph = *lowered.graph, .segments = lowered.segments, .units = lowered.units};
  for (const Phase phase : {Phase::Load, Phase::Step1, Phase::Step2, Phase::Eval, Phase::Save}) {
    ProgramBuilder builder(phase, names, bodies, plan.mesh, labels);
    schedule.emit(input, phase, builder);
    lowered.phases.push_back(builder.finish());
  }
  return lowered;
}

}  // namespace

Lowered lower(const Plan& plan) {
  auto graph = std::make_shared<const OpGraph>(build_graph(graph_request_of(plan)));
  const Segments segments = segments_of(*graph);
  return lower(plan, std::move(graph), segments);
}

Lowered lower(const Plan& plan, std::shared_ptr<const OpGraph> graph, const Segments& segments) {
  SegmentBodies bodies(*graph, segments, {.reduce = plan.workload.precision.reduce});
  return lower_with(plan, std::move(graph), segments, bodies, Labels::All);
}

Lowered lower_for_forecast(const Plan& plan, std::shared_ptr<const OpGraph> graph, const Segments& segments,
                           SegmentBodies& bodies) {
  CHECK(&bodies.graph() == graph.get() && bodies.options().reduce == plan.workload.precision.reduce,
        "bodies serve plans of their graph");
  return lower_with(plan, std::move(graph), segments, bodies, Labels::Tasks);
}

}  // namespace shardplan
