#include <algorithm>

#include "planner/search/search.h"

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

KnobSpace knob_space(const PlanRequest& request, std::int64_t num_layers) {
  const FixedKnobs& knobs = request.knobs;
  return {.meshes = meshes_of(request),
          .units = fixed_or(knobs.units, units_of(num_layers)),
          .roots = fixed_or(knobs.root, {RootWord::Split, RootWord::Joint}),
          .reshards = fixed_or(knobs.reshard, {ReshardWord::All, ReshardWord::AllButLast, ReshardWord::None}),
          .recomputes = fixed_or(knobs.recompute, recomputes_of(num_layers)),
          .prefetches = fixed_or(knobs.prefetch, {1, 0, 2}),
          .inits = {knobs.init.value_or(init_of(request))}};
}

bool has_free_batch(const PlanRequest& request) { return !request.knobs.micro_batch && request.workload.global_batch == 0; }

std::vector<BatchShape> batch_shapes(const PlanRequest& request, std::int64_t most) {
  const FixedKnobs& knobs = request.knobs;
  std::vector<BatchShape> shapes;
  const auto add = [&](std::int64_t micro_batch, std::int64_t grad_accum) {
    if (knobs.grad_accum.value_or(grad_accum) != grad_accum || knobs.micro_batch.value_or(micro_batch) != micro_batch) return;
    // With one micro-step the two words are one program: `every` stands for both.
    for (const AccumSync sync : {AccumSync::Every, AccumSync::Last}) {
      if (grad_accum == 1 && sync == AccumSync::Last) continue;
      if (grad_accum > 1 && knobs.accum_sync.value_or(sync) != sync) continue;
      shapes.push_back({.micro_batch = micro_batch, .grad_accum = static_cast<std::int32_t>(grad_accum), .accum_sync = sync});
    }
  };
  if (request.workload.global_batch == 0) {
    const std::int64_t accum = knobs.grad_accum.value_or(1);
    if (knobs.micro_batch) {
      add(*knobs.micro_batch, accum);
    } else {
      for (std::int64_t b = 1; b <= most; ++b) add(b, accum);
    }
    return shapes;
  }
  const std::int64_t per_rank = request.workload.global_batch / request.gpus;
  for (std::int64_t b = 1; b <= std::min(most, per_rank); ++b) {
    if (per_rank % b == 0) add(b, per_rank / b);
  }
  return shapes;
}

}  // namespace shardplan
