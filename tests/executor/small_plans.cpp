#include <c10/util/Logging.h>  // before core/error.h, whose CHECK replaces the one here

#include "tests/executor/small_plans.h"

#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <algorithm>

#include "core/error.h"
#include "executor/optimizer.h"
#include "planner/graph/segments.h"

namespace shardplan {
namespace {

// A number in [0, 1) that depends on its arguments alone.
double seeded(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = a * 0x9E3779B97F4A7C15ULL + b * 0xBF58476D1CE4E5B9ULL + 0x94D049BB133111EBULL;
  x ^= x >> 31;
  x *= 0xD6E8FEB86659FD93ULL;
  x ^= x >> 29;
  return static_cast<double>(x >> 11) / static_cast<double>(1ULL << 53);
}

std::string unit_name_of(const Segment& segment, const PlanChoice& choice) {
  const std::string layer = std::to_string(segment.layer);
  if (choice.wrap == Wrap::Whole) return "whole";
  if (segment.layer < 0) return choice.joint_root ? "root" : segment.name;
  if (choice.wrap == Wrap::Halves) return segment.name;
  if (choice.wrap == Wrap::TwoBlocks) return "blocks." + std::to_string(segment.layer / 2);
  return "blocks." + layer;
}

std::vector<UnitPlan> units_of(const Segments& segments, const PlanChoice& choice) {
  std::vector<UnitPlan> units;
  for (std::size_t s = 0; s < segments.all.size(); ++s) {
    if (segments.all[s].parameters.empty()) continue;
    const std::string name = unit_name_of(segments.all[s], choice);
    auto unit = std::find_if(units.begin(), units.end(), [&](const UnitPlan& u) { return u.name == name; });
    if (unit == units.end())
      unit = units.insert(units.end(), {.name = name, .segments = {}, .reshard_after_forward = choice.reshard});
    unit->segments.emplace_back(static_cast<std::int64_t>(s));
  }
  return units;
}

std::vector<SpanPlan> spans_of(const Segments& segments, const PlanChoice& choice) {
  std::vector<SpanPlan> spans;
  std::int32_t last_layer = -1;
  for (std::size_t s = 0; s < segments.all.size(); ++s) {
    const Segment& segment = segments.all[s];
    const SegmentId id(static_cast<std::int64_t>(s));
    if (segment.layer < 0 || choice.recompute == Recompute::None) continue;
    if (choice.recompute == Recompute::FirstBlock && segment.layer != 0) continue;
    if (choice.recompute != Recompute::Halves && segment.layer == last_layer) {
      spans.back().last = id;
    } else {
      spans.push_back({.first = id, .last = id});
      if (choice.recompute == Recompute::KeepAttention) spans.back().keep = {OpKind::AttentionCpu};
    }
    last_layer = segment.layer;
  }
  return spans;
}

}  // namespace

Plan plan_of(const PlanChoice& choice) {
  Plan plan;
  plan.model_name = "small";
  plan.model_config = choice.config.is_null() ? config_of(choice.model) : choice.config;
  plan.hardware_id = "local-cpu";
  plan.device = DeviceKind::Cpu;
  plan.workload.seq_len = choice.seq_len;
  plan.workload.train = choice.train;
  plan.workload.precision = choice.precision;
  plan.workload.optimizer.clip_norm = choice.clip_norm;
  plan.workload.optimizer.weight_decay = 0.1;
  plan.workload.optimizer.decay = WeightDecayScope::Matrices;
  plan.mesh = {.shard = choice.shard, .replicate = choice.replicate};
  plan.micro_batch = choice.batch;
  plan.grad_accum = choice.grad_accum;
  plan.accum_sync = choice.accum_sync;
  plan.workload.global_batch = choice.batch * choice.grad_accum * choice.shard * choice.replicate;
  plan.prefetch = choice.prefetch;
  plan.init = choice.init;
  const ModelSpec model = model_of(plan);
  plan.kernels = kernels_for(DeviceKind::Cpu, choice.precision.compute, model.num_heads != model.num_kv_heads);
  const OpGraph graph = build_graph(graph_request_of(plan));
  const Segments segments = segments_of(graph);
  plan.units = units_of(segments, choice);
  plan.spans = spans_of(segments, choice);
  return plan;
}

SeededFiles::SeededFiles(const Lowered& lowered, std::int32_t shard_index) : lowered_(lowered), shard_index_(shard_index) {}

void SeededFiles::load(UnitId unit, std::vector<GroupState>& groups, std::span<const at::Tensor>) {
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const FlatGroup& layout = lowered_.units[unit.at()].groups[g];
    std::vector<float> whole(static_cast<std::size_t>(layout.padded_numel), 0.0F);
    for (const ParameterSlot& slot : layout.slots) {
      const Parameter& p = lowered_.graph->table.parameters[slot.parameter.at()];
      const double middle = p.kind == ParameterKind::Norm ? 1.0 : 0.0;
      for (std::int64_t i = 0; i < slot.numel; ++i)
        whole[static_cast<std::size_t>(slot.offset + i)] =
            static_cast<float>(middle + 0.2 * (seeded(slot.parameter.at() + 1, static_cast<std::uint64_t>(i)) - 0.5));
    }
    float* const own = whole.data() + layout.stretch_numel * shard_index_;
    groups[g].sharded_param.flat.copy_(at::from_blob(own, {layout.stretch_numel}, at::kFloat));
  }
}

void SeededFiles::save(UnitId unit, const std::vector<GroupState>& groups, std::span<const at::Tensor>) {
  for (std::size_t g = 0; g < groups.size(); ++g) {
    std::vector<float>& values = saved[{unit.value, static_cast<std::int32_t>(g)}];
    values.resize(static_cast<std::size_t>(groups[g].sharded_param.flat.numel()));
    at::from_blob(values.data(), {groups[g].sharded_param.flat.numel()}, at::kFloat).copy_(groups[g].sharded_param.flat);
  }
}

SeededStep::SeededStep(const PlanChoice& choice, std::int32_t data_rank, std::int64_t step) {
  const std::int64_t data_ranks = choice.shard * choice.replicate, tokens = choice.batch * choice.seq_len;
  const std::size_t count = static_cast<std::size_t>(tokens * choice.grad_accum);
  ids.resize(count);
  targets.resize(count);
  std::int64_t num_targets = 0;  // all data ranks have the same pattern of missing ones
  for (std::size_t i = 0; i < count; ++i) {
    const auto word = [&](std::uint64_t what) {
      return static_cast<std::int64_t>(seeded(static_cast<std::uint64_t>(step * 64 + data_rank) * 2 + what, i) *
                                       static_cast<double>(choice.model.vocab));
    };
    ids[i] = word(0);
    targets[i] = i % 9 == 8 ? -100 : word(1);
    if (targets[i] >= 0) num_targets += 1;
  }
  for (std::int32_t a = 0; a < choice.grad_accum; ++a) {
    const auto part = [&](const std::vector<std::int64_t>& all) {
      return std::span<const std::int64_t>(all).subspan(static_cast<std::size_t>(a * tokens), static_cast<std::size_t>(tokens));
    };
    input.micro_batches.push_back({.ids = part(ids), .targets = part(targets)});
  }
  input.num_targets = num_targets * data_ranks;
  input.learning_rate = 1e-2;
}

}  // namespace shardplan
