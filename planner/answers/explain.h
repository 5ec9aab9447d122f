// Why each decision was taken: the other words of one knob at a time, everything else as chosen, with their figures.
//
// "because" is made of those figures and of nothing else. `counted_only` figures come from the quick forecast.
#pragma once

#include <vector>

#include "planner/answers/answer.h"

namespace shardplan {

// One entry per kind of decision, in the order of the knob table.
[[nodiscard]] std::vector<Explanation> explain(const Found& best, Evaluator& evaluator);

// How an answer calls a choice: "shard 4, blocks, split root, recompute full, micro-batch 3".
[[nodiscard]] std::string text_from_choice(const KnobChoice& choice);

}  // namespace shardplan
