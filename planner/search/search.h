// Exact search over the knob words: the plan with the best objective that fits, or the one that needs least when none does.
//
// Every point of the space is either forecast or excluded by a bound that is stated in search.cpp; ties go to less memory, then to
// the earlier words in the order of knob_space(). The answer does not depend on how the space is walked. Leaves out: words with
// other numbers than knob_space() lists, and keep:OPS. gap_fraction bounds what any word of any knob could gain in the objective,
// those and more micro-steps of a free batch included.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "planner/search/evaluate.h"
#include "planner/search/knob_space.h"

namespace shardplan {

struct SearchFacts {
  std::int64_t space = 0;      // plans that the words allow; free micro-batches count up to the largest that fits
  std::int64_t evaluated = 0;  // plans that were forecast; the others were excluded by bounds
  bool exact = true;           // the answer is the best of the space
  double gap_fraction = 0;     // see [Note: gap] in search.cpp
};

struct Found {
  KnobChoice choice;
  Figures figures;
  std::array<std::int64_t, 8> rank{};  // place in the space, for ties
};

struct SearchResult {
  std::optional<Found> best;     // fits
  std::optional<Found> closest;  // set when nothing fits: needs least
  SearchFacts facts;
};

[[nodiscard]] SearchResult search(Evaluator& evaluator);

// More tokens per second; then less memory; then the earlier rank.
[[nodiscard]] bool is_faster(const Found& a, const Found& b, const Evaluator& evaluator);

}  // namespace shardplan
