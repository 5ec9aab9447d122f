#include "planner/lowering/stock/stock_forward.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "core/error.h"

namespace shardplan {
namespace {

constexpr std::string_view kResidual = ".residual";

bool is_norm(std::string_view module) { return module.find("norm") != std::string_view::npos || module.starts_with("ln_"); }

// The child of the layer that an op runs in: "self_attn", "mlp", "input_layernorm"; empty for the layer's own lines.
std::string_view child_of_layer(std::string_view name) {
  if (name.ends_with(kResidual)) return {};
  return name.substr(0, name.find('.'));
}

class Frames {
 public:
  explicit Frames(const OpGraph& graph) : graph_(graph) {
    place_ops();
    find_modules();
    result_.holds.resize(graph.storages.size());
  }

  StockForward run() {
    for (std::int32_t p = 0; p < size(); ++p) {
      const Op& op = op_at(p);
      for (const ValueId v : op.outputs) hold(graph_.value(v).storage, p);
      for (const ValueId v : op.inputs)
        if (v.is_set()) read(graph_.value(v).storage, p);
    }
    hold_locals();
    hold_composed_attention();
    return std::move(result_);
  }

 private:
  // The token lookup runs first, then tables and masks.
  void place_ops() {
    const auto num_ops = static_cast<std::int32_t>(graph_.num_forward_ops);
    std::int32_t lookup = 0;
    while (lookup < num_ops && graph_.ops[static_cast<std::size_t>(lookup)].kind != OpKind::Embedding) ++lookup;
    CHECK(lookup < num_ops, "a model looks its tokens up");
    result_.order.emplace_back(lookup);
    for (std::int32_t i = 0; i < num_ops; ++i)
      if (i != lookup) result_.order.emplace_back(i);
    result_.position.resize(static_cast<std::size_t>(num_ops));
    for (std::size_t p = 0; p < result_.order.size(); ++p) result_.position[result_.order[p].at()] = static_cast<std::int32_t>(p);
    result_.embedding = {0, 1};
  }

  // Layers are those of the ops; behind them come the final norm, the head (its product, and what caps the logits) and the loss.
  void find_modules() {
    std::int32_t body_end = 0;
    for (std::int32_t p = 0; p < size(); ++p) {
      const std::int32_t layer = op_at(p).layer;
      if (layer < 0) continue;
      if (static_cast<std::size_t>(layer) >= result_.layers.size())
        result_.layers.resize(static_cast<std::size_t>(layer) + 1, {p, p});
      result_.layers[static_cast<std::size_t>(layer)].end = p + 1;
      body_end = p + 1;
    }
    const std::int32_t logits = position_of(graph_.storage_of(graph_.logits).made_by);
    std::int32_t head = logits;
    while (head > body_end && op_at(head).kind != OpKind::Linear) --head;
    result_.head = {head, logits + 1};
    result_.final_norm = {body_end, head};
    result_.loss = {logits + 1, size()};
    in_rotary_.resize(result_.layers.size());
    children_.resize(result_.layers.size());
    for (std::int32_t p = 0; p < size(); ++p) {
      const Op& op = op_at(p);
      if (op.layer < 0) continue;
      const std::string_view name = graph_.name_of(op);
      if (name.find("_rotary") != std::string_view::npos) extend(in_rotary_[static_cast<std::size_t>(op.layer)], p);
      extend(child_range(p), p);
    }
  }

  static void extend(PositionRange& range, std::int32_t p) {
    if (range.empty()) range.first = p;
    range.end = p + 1;
  }

  struct Child {
    std::string_view name;
    PositionRange range;
  };
  // The range of the layer's child that the op at p runs in.
  PositionRange& child_range(std::int32_t p) {
    const Op& op = op_at(p);
    const std::string_view name = child_of_layer(graph_.name_of(op));
    std::vector<Child>& known = children_[static_cast<std::size_t>(op.layer)];
    for (Child& child : known)
      if (child.name == name) return child.range;
    known.push_back({.name = name, .range = {}});
    return known.back().range;
  }

  void hold(StorageId storage, std::int32_t until, bool after_module = false) {
    Hold& hold = result_.holds[storage.at()];
    if (until > hold.until)
      hold = {until, after_module};
    else if (until == hold.until)
      hold.after_module = hold.after_module || after_module;
  }

  void read(StorageId storage, std::int32_t p) {
    const OpId maker = graph_.storage(storage).made_by;
    if (!maker.is_set()) return;
    const std::int32_t made = position_of(maker);
    const Op& op = op_at(p);
    hold(storage, p);
    if (p >= result_.head.first) {
      hold(storage, size() - 1, true);  // results of the body and of the head are locals of the whole forward
      return;
    }
    if (made < result_.layers.front().first && p >= result_.layers.front().first) hold(storage, result_.head.first - 1, true);
    if (op.layer < 0) return;
    const PositionRange layer = result_.layers[static_cast<std::size_t>(op.layer)];
    if (!layer.contains(made)) hold(storage, layer.end - 1, true);
    const std::string_view name = graph_.name_of(op);
    const PositionRange rotary = in_rotary_[static_cast<std::size_t>(op.layer)];
    if (rotary.contains(p) && !rotary.contains(made)) hold(storage, rotary.end - 1);
    if (child_of_layer(name).empty()) return;
    const PositionRange child = child_range(p);
    // What enters the module, and what the core of an attention module (ops under the module's bare name) takes from the rest of
    // it.
    const bool enters = !child.contains(made);
    const bool enters_core = graph_.name_of(op_at(made)) != name && name.find('.') == std::string_view::npos;
    if (enters || enters_core) hold(storage, child.end - 1);
  }

  // Composed attention: repeated keys and values, and the scores while their softmax runs, are locals of its function; it returns
  // its weights, and the layer has a name for them.
  void hold_composed_attention() {
    if (graph_.kernels.attention != AttentionKernel::Eager) return;
    for (const PositionRange& layer : result_.layers) {
      ValueId weights, scores;
      std::vector<StorageId> repeated;
      std::int32_t end = -1;
      for (std::int32_t p = layer.first; p < layer.end; ++p) {
        const Op& op = op_at(p);
        if (op.kind == OpKind::Softmax) scores = op.inputs[0];
        if (op.kind != OpKind::Bmm) continue;
        weights = op.inputs[0];
        repeated.push_back(graph_.value(op.inputs[1]).storage);
        end = p;
      }
      if (!scores.is_set()) continue;
      const OpId cast = graph_.storage_of(scores).made_by;
      if (graph_.op(cast).kind == OpKind::Cast) scores = graph_.op(cast).inputs[0];
      hold(graph_.value(scores).storage, position_of(graph_.storage_of(weights).made_by));
      for (const StorageId storage : repeated) hold(storage, end);
      hold(graph_.value(weights).storage, layer.end - 1);
    }
  }

  // Variance and normalised vectors of a norm.
  void hold_locals() {
    std::int32_t p = 0;
    while (p < size()) {
      const std::int32_t layer = op_at(p).layer;
      const std::int32_t name = op_at(p).name;
      std::int32_t end = p;
      while (end < size() && op_at(end).layer == layer && op_at(end).name == name) ++end;
      if (is_norm(graph_.name_of(op_at(p)))) {
        std::int32_t last_cast = -1;
        for (std::int32_t i = p; i < end; ++i) {
          if (op_at(i).kind == OpKind::MeanLast) hold(graph_.value(op_at(i).outputs[0]).storage, end - 1);
          if (op_at(i).kind == OpKind::Cast) last_cast = i;
        }
        if (last_cast > p) hold(graph_.value(op_at(last_cast).inputs[0]).storage, end - 1);
      }
      p = end;
    }
  }

  [[nodiscard]] std::int32_t size() const { return static_cast<std::int32_t>(result_.order.size()); }
  [[nodiscard]] const Op& op_at(std::int32_t position) const {
    return graph_.op(result_.order[static_cast<std::size_t>(position)]);
  }
  [[nodiscard]] std::int32_t position_of(OpId op) const { return result_.position[op.at()]; }

  const OpGraph& graph_;
  StockForward result_;
  std::vector<PositionRange> in_rotary_;      // by layer
  std::vector<std::vector<Child>> children_;  // by layer
};

}  // namespace

StockForward stock_forward(const OpGraph& graph) { return Frames(graph).run(); }

}  // namespace shardplan
