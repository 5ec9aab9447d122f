#include <algorithm>

#include "core/error.h"
#include "planner/lowering/schedules/fsdp2.h"

namespace shardplan {
namespace {

class Wrapping {
 public:
  Wrapping(const OpGraph& graph, const StockForward& forward, const Fsdp2Switches& switches)
      : graph_(graph), forward_(forward), switches_(switches), owner_(graph.table.parameters.size(), -1) {}

  std::vector<Fsdp2Unit> run() {
    add("root", {0, static_cast<std::int32_t>(forward_.order.size())}, switches_.root);
    if (switches_.wrap == Fsdp2Wrap::EmbedBlocksHead) {
      add("embed", forward_.embedding, switches_.inner);
      claim([](const Parameter& p) { return p.part == ParameterPart::Embedding && p.kind == ParameterKind::Embedding; });
    }
    if (switches_.wrap != Fsdp2Wrap::Root) add_layers(static_cast<std::size_t>(switches_.layers_per_unit));
    if (switches_.wrap == Fsdp2Wrap::EmbedBlocksHead) {
      add("head", {forward_.final_norm.first, forward_.head.end}, switches_.head);
      claim([](const Parameter& p) { return p.part == ParameterPart::FinalNorm || p.part == ParameterPart::Head; });
    }
    for (std::size_t p = 0; p < owner_.size(); ++p)
      units_[static_cast<std::size_t>(std::max(owner_[p], 0))].parameters.emplace_back(static_cast<std::int64_t>(p));
    return std::move(units_);
  }

 private:
  void add(std::string name, PositionRange forward, ReshardAfterForward reshard) {
    units_.push_back({.name = std::move(name), .parameters = {}, .forward = forward, .reshard = reshard});
  }

  template <class Selects>
  void claim(Selects selects) {
    for (std::size_t p = 0; p < owner_.size(); ++p)
      if (owner_[p] < 0 && selects(graph_.table.parameters[p])) owner_[p] = static_cast<std::int32_t>(units_.size()) - 1;
  }

  void add_layers(std::size_t in_one_unit) {
    for (std::size_t first = 0; first < forward_.layers.size(); first += in_one_unit) {
      const std::size_t end = std::min(first + in_one_unit, forward_.layers.size());
      add("layers." + std::to_string(first), {forward_.layers[first].first, forward_.layers[end - 1].end},
          first < switches_.by_layer.size() ? switches_.by_layer[first] : switches_.inner);
      claim([&](const Parameter& p) {
        return p.layer >= static_cast<std::int32_t>(first) && p.layer < static_cast<std::int32_t>(end);
      });
    }
  }

  const OpGraph& graph_;
  const StockForward& forward_;
  const Fsdp2Switches& switches_;
  std::vector<Fsdp2Unit> units_;
  std::vector<std::int32_t> owner_;  // by ParameterId: position in units_, -1 while nobody claimed it
};

}  // namespace

std::vector<Fsdp2Unit> fsdp2_units(const OpGraph& graph, const StockForward& forward, const Fsdp2Switches& switches) {
  return Wrapping(graph, forward, switches).run();
}

}  // namespace shardplan
