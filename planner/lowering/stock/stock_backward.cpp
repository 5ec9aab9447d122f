#include "planner/lowering/stock/stock_backward.h"

#include <algorithm>

#include "core/error.h"

namespace shardplan {
namespace {

bool is_reduction(OpKind kind) { return kind == OpKind::SumLast || kind == OpKind::SumLeading; }

class Engine {
 public:
  Engine(const OpGraph& graph, const StockForward& forward) : graph_(graph), forward_(forward) {}

  StockBackward run() {
    for (std::size_t i = static_cast<std::size_t>(graph_.num_forward_ops); i < graph_.ops.size(); ++i)
      add(OpId(static_cast<std::int64_t>(i)));
    for (BackwardStep& step : result_.steps) finish(step);
    find_deaths();
    return std::move(result_);
  }

 private:
  void add(OpId id) {
    const Op& op = graph_.op(id);
    if (op.kind == OpKind::Full) {
      result_.seed = graph_.value(op.outputs[0]).storage;
      return;
    }
    if (op.kind == OpKind::AccumulateGrad) {
      BackwardStep& step = result_.steps.back();
      step.hands_over.push_back(op.parameter);
      step.gradients.push_back(graph_.value(op.inputs[0]).storage);
      return;
    }
    const bool is_sum = op.kind == OpKind::Add;
    const bool continues =
        !is_sum && !result_.steps.empty() && result_.steps.back().forward == op.forward && !is_add(result_.steps.back());
    // What a node makes after a sum of one of its results still belongs to the node: the sum waits until the node has returned.
    if (!continues && !is_sum) {
      for (std::size_t s = result_.steps.size(); s-- > 0 && result_.steps[s].forward == op.forward;) {
        if (is_add(result_.steps[s])) continue;
        result_.steps[s].ops.push_back(id);
        return;
      }
    }
    if (!continues) {
      BackwardStep& step = result_.steps.emplace_back();
      step.forward = op.forward;
      step.position = forward_.position[op.forward.at()];
    }
    result_.steps.back().ops.push_back(id);
  }

  [[nodiscard]] bool is_add(const BackwardStep& step) const {
    return step.ops.size() == 1 && graph_.op(step.ops.front()).kind == OpKind::Add;
  }

  void finish(BackwardStep& step) {
    std::stable_partition(step.ops.begin(), step.ops.end(), [&](OpId id) { return !is_reduction(graph_.op(id).kind); });
    // Views of a sum follow it.
    std::stable_partition(step.ops.begin(), step.ops.end(), [&](OpId id) { return !reads_reduction(step, id); });
    for (const OpId id : step.ops) {
      for (const ValueId v : graph_.op(id).inputs) {
        if (!v.is_set()) continue;
        const StorageId storage = graph_.value(v).storage;
        const StorageRole role = graph_.storage(storage).role;
        if (role == StorageRole::Gradient || role == StorageRole::HostScalar) continue;
        if (std::find(step.saved.begin(), step.saved.end(), storage) == step.saved.end()) step.saved.push_back(storage);
      }
    }
  }

  [[nodiscard]] bool reads_reduction(const BackwardStep& step, OpId id) const {
    const Op& op = graph_.op(id);
    if (!is_view(op.kind)) return false;
    const OpId maker = graph_.storage_of(op.inputs[0]).made_by;
    if (!maker.is_set() || !is_reduction(graph_.op(maker).kind)) return false;
    return std::find(step.ops.begin(), step.ops.end(), maker) != step.ops.end();
  }

  // A gradient dies with the last step that reads it; what is handed over lives on in the parameter.
  void find_deaths() {
    std::vector<std::int32_t> last(graph_.storages.size(), -1);
    for (std::size_t s = 0; s < result_.steps.size(); ++s) {
      for (const OpId id : result_.steps[s].ops) {
        for (const ValueId v : graph_.op(id).inputs)
          if (v.is_set()) last[graph_.value(v).storage.at()] = static_cast<std::int32_t>(s);
        for (const ValueId v : graph_.op(id).outputs) last[graph_.value(v).storage.at()] = static_cast<std::int32_t>(s);
      }
    }
    for (const BackwardStep& step : result_.steps)
      for (const StorageId storage : step.gradients) last[storage.at()] = -1;
    for (std::size_t i = 0; i < last.size(); ++i) {
      const StorageId storage(static_cast<std::int64_t>(i));
      if (last[i] < 0 || graph_.storage(storage).role != StorageRole::Gradient || storage == result_.seed) continue;
      result_.steps[static_cast<std::size_t>(last[i])].dies.push_back(storage);
    }
  }

  const OpGraph& graph_;
  const StockForward& forward_;
  StockBackward result_;
};

}  // namespace

StockBackward stock_backward(const OpGraph& graph, const StockForward& forward) { return Engine(graph, forward).run(); }

}  // namespace shardplan
