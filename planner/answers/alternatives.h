// What else is worth knowing beside the best plan: neighbours that trade speed for memory, other meshes, half the GPUs.
#pragma once

#include <vector>

#include "planner/answers/answer.h"

namespace shardplan {

// Up to `most`; each differs from the best plan in what `changes` names, everything else searched anew.
[[nodiscard]] std::vector<Alternative> alternatives(const Found& best, Evaluator& evaluator, int most);

}  // namespace shardplan
