#include "planner/lowering/schedules/fsdp2_projection.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "core/error.h"
#include "core/units.h"
#include "planner/graph/stock_kernels.h"

namespace shardplan {
namespace {

ReshardAfterForward reshard_of(const UnitPlan& unit) {
  return {.kind = unit.reshard_after_forward ? ReshardAfterForward::Kind::Free : ReshardAfterForward::Kind::Keep};
}

bool holds(const UnitPlan& unit, SegmentId segment) {
  return std::find(unit.segments.begin(), unit.segments.end(), segment) != unit.segments.end();
}

std::int32_t num_layers_in(const UnitPlan& unit, const Segments& segments) {
  std::vector<std::int32_t> layers;
  for (const SegmentId s : unit.segments)
    if (const std::int32_t layer = segments.all[s.at()].layer;
        layer >= 0 && std::find(layers.begin(), layers.end(), layer) == layers.end())
      layers.push_back(layer);
  return static_cast<std::int32_t>(layers.size());
}

void project_units(const Plan& plan, const Segments& segments, Fsdp2Switches& switches) {
  const SegmentId first(0), last(static_cast<std::int64_t>(segments.all.size()) - 1);
  const UnitPlan* embed = nullptr;
  const UnitPlan* head = nullptr;
  for (const UnitPlan& unit : plan.units) {
    if (holds(unit, first)) embed = &unit;
    if (holds(unit, last)) head = &unit;
  }
  CHECK(embed != nullptr && head != nullptr, "every segment is in a unit");
  if (embed == head) {
    switches.wrap = num_layers_in(*embed, segments) > 0 ? Fsdp2Wrap::Root : Fsdp2Wrap::Blocks;
  } else {
    switches.wrap = Fsdp2Wrap::EmbedBlocksHead;
    switches.inner = reshard_of(*embed);
    switches.head = reshard_of(*head);
  }
  for (const UnitPlan& unit : plan.units) {
    switches.layers_per_unit =
        std::max(switches.layers_per_unit, switches.wrap == Fsdp2Wrap::Root ? 1 : num_layers_in(unit, segments));
    for (const SegmentId s : unit.segments) {
      const std::int32_t layer = segments.all[s.at()].layer;
      if (layer < 0) continue;
      const auto at = static_cast<std::size_t>(layer);
      if (at >= switches.by_layer.size()) switches.by_layer.resize(at + 1, {.kind = ReshardAfterForward::Kind::Keep});
      if (unit.reshard_after_forward) switches.by_layer[at] = reshard_of(unit);
    }
  }
}

void project_recompute(const Plan& plan, const Segments& segments, Fsdp2Switches& switches) {
  for (const SpanPlan& span : plan.spans) {
    for (std::int32_t s = span.first.value; s <= span.last.value; ++s) {
      const std::int32_t layer = segments.all[static_cast<std::size_t>(s)].layer;
      if (layer < 0) continue;
      const auto at = static_cast<std::size_t>(layer);
      if (at >= switches.checkpointed.size()) switches.checkpointed.resize(at + 1, false);
      switches.checkpointed[at] = true;
    }
  }
}

StockOptimizer optimizer_of(const OptimizerSpec& spec) {
  if (spec.name == "adamw" && spec.form == "fused") return StockOptimizer::FusedAdamW;
  if (spec.name == "adamw" && spec.form == "foreach") return StockOptimizer::ForeachAdamW;
  if (spec.name == "adamw" && spec.form == "loop") return StockOptimizer::LoopAdamW;
  throw ConfigError(fmt::format("stock FSDP2 is not forecast with the optimizer {} in its {} form", spec.name, spec.form),
                    "plan#/workload/optimizer", "adamw, fused, foreach or loop");
}

// Names and sizes for those who read the program; every parameter is cut by itself.
std::vector<UnitLayout> layouts_of(const OpGraph& graph, const Segments& segments, const StockForward& forward,
                                   const Fsdp2Switches& switches) {
  std::vector<UnitLayout> layouts;
  for (const Fsdp2Unit& unit : fsdp2_units(graph, forward, switches)) {
    UnitLayout layout{.name = unit.name,
                      .segments = {},
                      .groups = {},
                      .reshard_after_forward = unit.reshard.kind != ReshardAfterForward::Kind::Keep};
    for (const bool trainable : {true, false}) {
      FlatGroup group{.trainable = trainable};
      for (const ParameterId p : unit.parameters) {
        const Parameter& parameter = graph.table.parameters[p.at()];
        if (parameter.trainable != trainable) continue;
        group.slots.push_back({.parameter = p, .offset = group.numel, .numel = parameter.numel()});
        group.numel += parameter.numel();
        const std::int64_t rows = parameter.shape.front();
        group.padded_numel += parameter.numel() / rows * round_up(rows, switches.mesh.shard);
      }
      group.stretch_numel = group.padded_numel / switches.mesh.shard;
      if (!group.slots.empty()) layout.groups.push_back(std::move(group));
    }
    for (std::size_t s = 0; s < segments.all.size(); ++s) {
      const std::vector<ParameterId>& read = segments.all[s].parameters;
      if (std::any_of(read.begin(), read.end(), [&](ParameterId p) {
            return std::find(unit.parameters.begin(), unit.parameters.end(), p) != unit.parameters.end();
          }))
        layout.segments.emplace_back(static_cast<std::int64_t>(s));
    }
    layouts.push_back(std::move(layout));
  }
  return layouts;
}

}  // namespace

Fsdp2Switches project_on_fsdp2(const Plan& plan, const Segments& segments) {
  if (plan.device != DeviceKind::Cuda)
    throw ConfigError("stock FSDP2 is forecast for CUDA devices only", "plan#/device", "plan for a GPU");
  if (plan.mesh.tp != 1)
    throw ConfigError(fmt::format("stock FSDP2 is not forecast with a tensor-parallel degree of {}", plan.mesh.tp), "plan#/mesh",
                      "tp 1");
  const Precision& precision = plan.workload.precision;
  Fsdp2Switches switches{.mesh = plan.mesh,
                         .param_dtype = precision.compute,
                         .reduce_dtype = precision.reduce,
                         .stored = precision.stored,
                         .micro_steps = plan.grad_accum,
                         .reduces_every_micro_step = plan.accum_sync == AccumSync::Every,
                         .optimizer = optimizer_of(plan.workload.optimizer)};
  project_units(plan, segments, switches);
  project_recompute(plan, segments, switches);
  return switches;
}

Lowered lower_fsdp2(const Plan& plan) {
  GraphRequest request = graph_request_of(plan);
  request.kernels = stock_kernels(request.model, {.compute = request.compute, .seq_len = request.seq_len});
  Lowered lowered;
  const auto graph = std::make_shared<const OpGraph>(build_graph(request));
  lowered.graph = graph;
  lowered.segments = segments_of(*graph);
  const Fsdp2Switches switches = project_on_fsdp2(plan, lowered.segments);
  lowered.units = layouts_of(*graph, lowered.segments, stock_forward(*graph), switches);
  lowered.places = parameter_places(*graph, lowered.units);
  for (const Phase phase : {Phase::Step1, Phase::Step2})
    lowered.phases.push_back(lower_fsdp2_step(*graph, lowered.segments, switches, phase).lowered);
  return lowered;
}

}  // namespace shardplan
