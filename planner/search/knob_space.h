// The decision space of a request: what each knob may be, fixed knobs with one entry, in the order in which ties are decided.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/search/request.h"

namespace shardplan {

// Units and root go together: one unit for everything has no root of its own.
struct Wrapping {
  UnitsWord units;
  RootWord root = RootWord::Split;
  bool operator==(const Wrapping&) const = default;
};

struct KnobSpace {
  std::vector<MeshDegrees> meshes;
  std::vector<Wrapping> wrappings;
  std::vector<ReshardWord> reshards;
  std::vector<RecomputeWord> recomputes;
  std::vector<std::int32_t> prefetches;
  InitPath init = InitPath::Simple;  // follows from host memory
};
[[nodiscard]] KnobSpace knob_space(const PlanRequest& request);

// Micro-batch, accumulation and its reduction.
struct BatchShape {
  std::int64_t micro_batch = 1;
  std::int32_t grad_accum = 1;
  AccumSync accum_sync = AccumSync::Every;
  bool operator==(const BatchShape&) const = default;
};

// The micro-batch is open upwards: neither it nor the global batch is given. Accumulation is then as given, or 1: more micro-steps
// would be a larger batch of the job, not another way to do it.
[[nodiscard]] bool has_free_batch(const PlanRequest& request);

// Limits that keep every count of bytes far inside 64 bits, and a step a thing of seconds to simulate.
inline constexpr std::int64_t kMostTokensOfMicroStep = std::int64_t{1} << 30;
inline constexpr std::int64_t kMostMicroSteps = 4096;
// A free micro-batch is searched up to here: by then a kernel's launch is small beside its work, and every further micro-batch
// costs the search a graph of its own. A larger one can be given.
inline constexpr std::int64_t kMostFreeMicroBatch = 256;
[[nodiscard]] std::int64_t most_micro_batch(const PlanRequest& request);
// That a plan may have at all, searched or given.
[[nodiscard]] std::int64_t most_micro_batch_of_a_plan(const PlanRequest& request);

// With a free batch all shapes of one micro-batch; else all shapes, micro-batch ascending.
[[nodiscard]] std::vector<BatchShape> shapes_with_micro_batch(const PlanRequest& request, std::int64_t micro_batch);
[[nodiscard]] std::vector<BatchShape> batch_shapes(const PlanRequest& request);

}  // namespace shardplan
