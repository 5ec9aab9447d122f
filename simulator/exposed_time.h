// How much of the communication is exposed: the time in which a collective ran and the compute stream ran no kernel.
//
// An instant in which several collectives run is counted once, for the first of them in program order. The sum over all collectives
// is therefore at most the duration less the time of the compute stream's kernels.
#pragma once

#include <chrono>
#include <vector>

#include "core/step_program.h"
#include "simulator/engine.h"

namespace shardplan {

// By TaskId; 0 for tasks without collective.
[[nodiscard]] std::vector<std::chrono::nanoseconds> exposed_times(const StepProgram& program, const std::vector<TaskTimes>& times);

}  // namespace shardplan
