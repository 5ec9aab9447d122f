// Memory of a timed StepProgram: requested bytes in program order, each change at an instant of the compute stream.
//
// The order is the host's: an allocator sees the program's requests one after another, whatever the streams overlap. A task of the
// compute stream changes memory at the start (Allocate) or end (Free) of the kernel that its effect names. A task of another stream
// does so when it is issued: right after what precedes it in program order. So the changes are ordered by time and by program order
// at once, and summing them gives the levels of the tasks. In a synchronous program every task is timed by its own kernels.
#pragma once

#include <vector>

#include "core/hardware_spec.h"
#include "core/step_program.h"
#include "core/timeline.h"
#include "simulator/engine.h"

namespace shardplan {

// Fills what a Timeline says about memory. Requires: timeline.tasks has one span for each task.
void add_memory(Timeline& timeline, const StepProgram& program, const std::vector<TaskTimes>& times, const HardwareSpec& hardware,
                const SimulateOptions& options);

}  // namespace shardplan
