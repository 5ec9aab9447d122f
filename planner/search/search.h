// Exact search over the knob words: the plan with the best objective that fits, or the one that needs least when none does.
//
// Every point of the space is either forecast or excluded by a bound that is proven in search.cpp; ties go to less memory, then to the
// earlier word in the order of the knob tables. The answer does not depend on how the space is walked.
// Leaves out: words with other numbers than knob_space() lists; gap_fraction bounds what they could gain.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "planner/search/evaluate.h"

namespace shardplan {

// What each knob may be. A fixed knob has one entry.
struct KnobSpace {
  std::vector<MeshDegrees> meshes;
  std::vector<UnitsWord> units;
  std::vector<RootWord> roots;
  std::vector<ReshardWord> reshards;
  std::vector<RecomputeWord> recomputes;
  std::vector<std::int32_t> prefetches;
  std::vector<InitPath> inits;
};
[[nodiscard]] KnobSpace knob_space(const PlanRequest& request, std::int64_t num_layers);

// Micro-batch, accumulation and its reduction, micro-batch ascending. Free batch: every micro-batch up to `most`, one micro-step (more
// of them would be a larger batch of the job, not another way to do it).
struct BatchShape {
  std::int64_t micro_batch = 1;
  std::int32_t grad_accum = 1;
  AccumSync accum_sync = AccumSync::Every;
  bool operator==(const BatchShape&) const = default;
};
[[nodiscard]] std::vector<BatchShape> batch_shapes(const PlanRequest& request, std::int64_t most);
// The micro-batch is open upwards: neither it nor the global batch is given.
[[nodiscard]] bool has_free_batch(const PlanRequest& request);

struct SearchFacts {
  std::int64_t space = 0;      // plans that the words allow
  std::int64_t evaluated = 0;  // plans that were forecast; the others were excluded by bounds
  bool exact = true;           // the answer is the best of the space
  double gap_fraction = 0;     // what any plan of the whole knob space could gain in the objective, at most
};

struct Found {
  KnobChoice choice;
  Figures figures;
};

struct SearchResult {
  std::optional<Found> best;  // fits
  Found closest;              // needs least; the best by memory when one fits
  SearchFacts facts;
};

[[nodiscard]] SearchResult search(Evaluator& evaluator);

// Is `a` a better answer than `b`? Objective, then memory, then time; equal otherwise.
[[nodiscard]] bool is_better(const Found& a, const Found& b, const Evaluator& evaluator);

}  // namespace shardplan
