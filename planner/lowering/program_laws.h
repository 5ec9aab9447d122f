// Interprets one phase of a lowered plan without computing anything, and says which laws it breaks.
//
// Knows what ops read and write, which buffers stand for what, and what streams and waits guarantee; nothing of the schedule that
// made the program. Used by check_plan.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/lowering/check_plan.h"

namespace shardplan {

struct ProgramVerdict {
  std::vector<PlanProblem> problems;  // at most kMostProblems, in program order
  std::int64_t peak_bytes = 0;        // requested, device
};
inline constexpr std::size_t kMostProblems = 20;

[[nodiscard]] ProgramVerdict judge_program(const Plan& plan, const Lowered& lowered, const LoweredProgram& phase);

}  // namespace shardplan
