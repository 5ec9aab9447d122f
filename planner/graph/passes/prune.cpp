#include "planner/graph/passes/prune.h"

#include "core/error.h"

namespace shardplan {
namespace {

// By op: does something that counts read one of its results?
std::vector<bool> live_ops(const OpGraph& graph) {
  std::vector<bool> live(graph.ops.size(), false);
  std::vector<bool> is_read(graph.values.size(), false);
  for (const ValueId wanted : {graph.loss, graph.input_gradient}) {
    if (wanted.is_set()) is_read[wanted.at()] = true;
  }
  for (std::size_t i = graph.ops.size(); i-- > 0;) {
    const Op& op = graph.ops[i];
    live[i] = op.kind == OpKind::AccumulateGrad;
    for (const ValueId output : op.outputs) live[i] = live[i] || is_read[output.at()];
    if (!live[i]) continue;
    for (const ValueId input : op.inputs) {
      if (input.is_set()) is_read[input.at()] = true;
    }
  }
  return live;
}

}  // namespace

void prune(OpGraph& graph) {
  const std::vector<bool> live = live_ops(graph);

  std::vector<OpId> new_op(graph.ops.size());
  std::size_t kept = 0;
  std::int64_t kept_forward = 0;
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    if (!live[i]) continue;
    new_op[i] = OpId(static_cast<std::int64_t>(kept));
    if (kept != i) graph.ops[kept] = graph.ops[i];
    if (static_cast<std::int64_t>(i) < graph.num_forward_ops) ++kept_forward;
    ++kept;
  }
  if (kept == graph.ops.size()) return;
  graph.ops.resize(kept);
  graph.num_forward_ops = kept_forward;
  for (Op& op : graph.ops) {
    if (op.forward.is_set()) op.forward = new_op[op.forward.at()];
  }

  // Values and storages: those that a surviving op or the graph itself names.
  std::vector<bool> value_lives(graph.values.size(), false), storage_lives(graph.storages.size(), false);
  const auto keep = [&](ValueId id) {
    if (!id.is_set()) return;
    value_lives[id.at()] = true;
    storage_lives[graph.values[id.at()].storage.at()] = true;
  };
  for (const Op& op : graph.ops) {
    for (const ValueId input : op.inputs) keep(input);
    for (const ValueId output : op.outputs) keep(output);
  }
  for (const ValueId named : {graph.ids, graph.targets, graph.loss, graph.logits, graph.input_gradient}) keep(named);

  std::vector<StorageId> new_storage(graph.storages.size());
  kept = 0;
  for (std::size_t i = 0; i < graph.storages.size(); ++i) {
    if (!storage_lives[i]) continue;
    new_storage[i] = StorageId(static_cast<std::int64_t>(kept));
    Storage moved = graph.storages[i];
    if (moved.made_by.is_set()) moved.made_by = new_op[moved.made_by.at()];
    graph.storages[kept++] = moved;
  }
  graph.storages.resize(kept);

  std::vector<ValueId> new_value(graph.values.size());
  kept = 0;
  for (std::size_t i = 0; i < graph.values.size(); ++i) {
    if (!value_lives[i]) continue;
    new_value[i] = ValueId(static_cast<std::int64_t>(kept));
    Value moved = graph.values[i];
    moved.storage = new_storage[moved.storage.at()];
    graph.values[kept++] = moved;
  }
  graph.values.resize(kept);

  const auto renumber = [&](ValueId& id) {
    if (id.is_set()) id = new_value[id.at()];
  };
  for (Op& op : graph.ops) {
    for (std::int32_t i = 0; i < op.inputs.count; ++i) renumber(op.inputs.item[static_cast<std::size_t>(i)]);
    for (std::int32_t i = 0; i < op.outputs.count; ++i) renumber(op.outputs.item[static_cast<std::size_t>(i)]);
  }
  for (ValueId* named : {&graph.ids, &graph.targets, &graph.loss, &graph.logits, &graph.input_gradient}) renumber(*named);
}

}  // namespace shardplan
