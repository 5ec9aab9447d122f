#include "tests/executor/small_plan.h"

#include "planner/graph/op_graph.h"

namespace shardplan {

Plan plan_of(const nlohmann::ordered_json& config, const SmallPlan& small) {
  const ModelSpec model = model_from_json(config, "config.json", "small");
  Plan plan;
  plan.model_name = "small";
  plan.model_config = config;
  plan.hardware_id = "local-cpu";
  plan.device = DeviceKind::Cpu;
  plan.workload.seq_len = small.seq_len;
  plan.workload.precision = small.precision;
  plan.workload.train = small.train;
  plan.workload.steps = small.steps;
  plan.kernels = kernels_for(DeviceKind::Cpu, small.precision.compute, model.num_heads != model.num_kv_heads);
  plan.micro_batch = small.knobs.micro_batch;
  OpGraph graph = build_graph(graph_request_of(plan));
  apply(small.knobs, segments_of(graph), plan);
  return plan;
}

}  // namespace shardplan
