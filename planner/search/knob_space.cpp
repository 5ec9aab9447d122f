#include "planner/search/knob_space.h"

#include <algorithm>

namespace shardplan {
namespace {

template <class T>
std::vector<T> fixed_or(const std::optional<T>& fixed, std::vector<T> all) {
  return fixed ? std::vector<T>{*fixed} : std::move(all);
}

// Every way to write the GPUs as shard degree x replicate degree, most sharded first.
std::vector<MeshDegrees> meshes_of(const PlanRequest& request) {
  const FixedKnobs& knobs = request.knobs;
  std::vector<MeshDegrees> meshes;
  for (std::int32_t shard = request.gpus; shard >= 1; --shard) {
    if (request.gpus % shard != 0) continue;
    const std::int32_t replicate = request.gpus / shard;
    if (knobs.shard_degree.value_or(shard) != shard || knobs.replicate_degree.value_or(replicate) != replicate) continue;
    meshes.push_back({.shard = shard, .replicate = replicate});
  }
  return meshes;
}

// Larger units than eight blocks hold most of a small model and nothing gains by them: their bound is part of gap_fraction.
std::vector<UnitsWord> units_of(std::int64_t num_layers) {
  using Form = UnitsWord::Form;
  std::vector<UnitsWord> units{{.form = Form::Blocks, .blocks = 1}, {.form = Form::Halves}};
  for (const std::int32_t blocks : {2, 4, 8}) {
    if (blocks < num_layers) units.push_back({.form = Form::Blocks, .blocks = blocks});
  }
  units.push_back({.form = Form::Whole});
  return units;
}

std::vector<RecomputeWord> recomputes_of(std::int64_t num_layers) {
  using Form = RecomputeWord::Form;
  std::vector<RecomputeWord> words{{.form = Form::None}};
  for (const std::int32_t every : {4, 3, 2}) {
    if (every <= num_layers) words.push_back({.form = Form::Blocks, .every = every});
  }
  words.push_back({.form = Form::AttentionHalves});
  words.push_back({.form = Form::MlpHalves});
  words.push_back({.form = Form::Full});
  return words;
}

InitPath init_of(const PlanRequest& request) {
  // The simple path maps the whole checkpoint on every node. Unknown host memory is not taken for enough.
  std::int64_t numel = parameter_table(request.model).total_numel();
  const std::int64_t checkpoint_bytes = numel * element_bytes(request.model.checkpoint_dtype);
  return checkpoint_bytes <= request.host_capacity_bytes() ? InitPath::Simple : InitPath::Delayed;
}

}  // namespace

KnobSpace knob_space(const PlanRequest& request) {
  const FixedKnobs& knobs = request.knobs;
  const std::int64_t num_layers = request.model.num_layers;
  KnobSpace space{.meshes = meshes_of(request),
                  .reshards = fixed_or(knobs.reshard, {ReshardWord::All, ReshardWord::AllButLast, ReshardWord::None}),
                  .recomputes = fixed_or(knobs.recompute, recomputes_of(num_layers)),
                  .prefetches = fixed_or(knobs.prefetch, {1, 0, 2}),
                  .init = knobs.init.value_or(init_of(request))};
  for (const UnitsWord& units : fixed_or(knobs.units, units_of(num_layers))) {
    for (const RootWord root : fixed_or(knobs.root, {RootWord::Split, RootWord::Joint})) {
      const bool is_whole = units.form == UnitsWord::Form::Whole;
      // A given root word excludes the unit that has none; without one, the unit counts once.
      if (is_whole && (knobs.root || root == RootWord::Joint)) continue;
      space.wrappings.push_back({units, root});
    }
  }
  return space;
}

bool has_free_batch(const PlanRequest& request) { return !request.knobs.micro_batch && request.workload.global_batch == 0; }

std::int64_t most_micro_batch_of_a_plan(const PlanRequest& request) {
  return std::max<std::int64_t>(kMostTokensOfMicroStep / request.workload.seq_len, 1);
}

std::int64_t most_micro_batch(const PlanRequest& request) {
  const std::int64_t most = most_micro_batch_of_a_plan(request);
  return has_free_batch(request) ? std::min(most, kMostFreeMicroBatch) : most;
}

std::vector<BatchShape> shapes_with_micro_batch(const PlanRequest& request, std::int64_t micro_batch) {
  const FixedKnobs& knobs = request.knobs;
  if (micro_batch > most_micro_batch(request)) return {};
  if (knobs.micro_batch.value_or(micro_batch) != micro_batch) return {};
  std::int64_t grad_accum = knobs.grad_accum.value_or(1);
  if (request.workload.global_batch > 0) {
    const std::int64_t per_rank = request.workload.global_batch / request.gpus;
    if (per_rank % micro_batch != 0) return {};
    grad_accum = per_rank / micro_batch;
    if (knobs.grad_accum.value_or(static_cast<std::int32_t>(grad_accum)) != grad_accum) return {};
  }
  if (grad_accum > kMostMicroSteps) return {};
  // With one micro-step the two words are one program: `every` stands for both.
  if (grad_accum == 1) return {{.micro_batch = micro_batch}};
  std::vector<BatchShape> shapes;
  for (const AccumSync sync : fixed_or(knobs.accum_sync, {AccumSync::Every, AccumSync::Last})) {
    shapes.push_back({.micro_batch = micro_batch, .grad_accum = static_cast<std::int32_t>(grad_accum), .accum_sync = sync});
  }
  return shapes;
}

std::vector<BatchShape> batch_shapes(const PlanRequest& request) {
  std::vector<std::int64_t> micro_batches;
  if (request.knobs.micro_batch || request.workload.global_batch == 0) {
    micro_batches.push_back(request.knobs.micro_batch.value_or(1));
  } else {
    const std::int64_t per_rank = request.workload.global_batch / request.gpus;
    for (std::int64_t b = 1; b * b <= per_rank; ++b) {
      if (per_rank % b != 0) continue;
      micro_batches.push_back(b);
      if (b * b != per_rank) micro_batches.push_back(per_rank / b);
    }
    std::sort(micro_batches.begin(), micro_batches.end());
  }
  std::vector<BatchShape> shapes;
  for (const std::int64_t b : micro_batches) {
    const std::vector<BatchShape> of_b = shapes_with_micro_batch(request, b);
    shapes.insert(shapes.end(), of_b.begin(), of_b.end());
  }
  return shapes;
}

}  // namespace shardplan
