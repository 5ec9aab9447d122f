// The independent judge of a plan: knows the plan, the model and the lowered program, nothing of how they were found.
//
// Judges that the plan is consistent (degrees, units, spans, batch), that the program it lowers to is lawful (every op of the graph
// runs, saved values are there when read, parameters are gathered when used, every gradient is reduced once, nothing leaks), and
// that its peak fits the limit. Includes nothing of search/ and nothing of the schedules.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/lowering/lowered_program.h"

namespace shardplan {

struct PlanProblem {
  std::string law;    // "every gradient is reduced exactly once"
  std::string where;  // "unit blocks.3, micro-step 0"
};

// `limit_bytes`: on requested bytes; 0 = none.
[[nodiscard]] std::vector<PlanProblem> check_plan(const Plan& plan, const Lowered& lowered, std::int64_t limit_bytes = 0);

}  // namespace shardplan
