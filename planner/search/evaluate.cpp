#include "planner/search/evaluate.h"

#include <utility>

#include "core/units.h"
#include "planner/graph/parameter_table.h"

namespace shardplan {
namespace {

bool has_window(const PlanRequest& request) {
  for (const std::int64_t window : request.model.sliding_window) {
    if (window > 0 && window < request.workload.seq_len) return true;
  }
  return false;
}

Plan base_plan(const PlanRequest& request) {
  Plan plan;
  plan.model_name = request.model.name;
  plan.model_config = request.model.config;
  plan.hardware_id = request.hardware.id;
  plan.device = request.hardware.device;
  plan.workload = request.workload;
  plan.num_nodes = request.nodes;
  plan.kernels = kernels_for(request.hardware.device, request.workload.precision.compute, request.model.num_kv_heads != request.model.num_heads,
                             has_window(request));
  return plan;
}

}  // namespace

Evaluator::Evaluator(PlanRequest request) : request_(std::move(request)), base_(base_plan(request_)) {
  segments_ = graphs_.of(base_).segments;
}

Plan Evaluator::plan_of(const KnobChoice& choice) const {
  Plan plan = base_;
  apply(choice, segments_, plan);
  return plan;
}

PlannedChoice Evaluator::full(const KnobChoice& choice) {
  PlannedChoice planned{.choice = choice, .plan = plan_of(choice)};
  const SharedGraph& shared = graphs_.of(planned.plan);
  const Lowered lowered = lower(planned.plan, shared.graph, shared.segments);
  planned.forecast = forecast_plan(planned.plan, lowered, request_.hardware, capacity_bytes());
  return planned;
}

Figures Evaluator::quick(const KnobChoice& choice) {
  const Forecast f = full(choice).forecast;
  return {.peak_requested_bytes = f.peak_requested_bytes,
          .peak_allocated_bytes = f.peak_allocated_bytes,
          .binding_bytes = binding_bytes(f, request_.hardware),
          .step = nanoseconds_from_seconds(f.step_seconds)};
}

}  // namespace shardplan
