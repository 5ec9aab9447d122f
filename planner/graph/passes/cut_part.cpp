#include "planner/graph/passes/cut_part.h"

#include "core/error.h"

namespace shardplan {

Part cut_part(const OpGraph& forward, std::int32_t first, std::int32_t end) {
  CHECK(0 < first && first < end && end <= forward.num_forward_ops, "a part begins after the first op and is not empty");
  Part part;
  OpGraph& graph = part.graph;
  graph = forward;
  graph.ops.assign(forward.ops.begin() + first, forward.ops.begin() + end);
  graph.num_forward_ops = end - first;
  for (Storage& storage : graph.storages) {
    if (!storage.made_by.is_set()) continue;
    const std::int32_t made_by = storage.made_by.value;
    const bool is_inside = first <= made_by && made_by < end;
    storage.made_by = is_inside ? OpId(made_by - first) : OpId{};
    if (!is_inside) storage.role = StorageRole::Input;
  }
  part.input = forward.ops[static_cast<std::size_t>(first - 1)].outputs[0];
  graph.loss = graph.ops.back().outputs[0];
  if (end != forward.num_forward_ops) graph.logits = {};
  return part;
}

}  // namespace shardplan
