// Gives a StepProgram time: StepProgram + HardwareSpec -> Timeline.
//
// An event engine: streams are in-order queues, a task starts when its stream is free and all it waits on has ended, collectives
// share links. Memory follows program order of the host, as an allocator sees it, and is byte-exact by category; the instants are
// those of the compute stream's kernels (memory_levels.h). With `synchronous`, every task waits for the one before it (the CPU
// runtime).
//
// Leaves out: allocator rounding and fragmentation. Units: bytes, integer nanoseconds. Same input, same Timeline.
// Requires: validate(program) passes.
#pragma once

#include "core/hardware_spec.h"
#include "core/step_program.h"
#include "core/timeline.h"

namespace shardplan {

struct SimulateOptions {
  bool synchronous = false;
  bool record_memory = true;  // every MemoryChange; without it only task levels and the peak
  std::int32_t ranks_per_node = 8;
};

[[nodiscard]] Timeline simulate(const StepProgram& program, const HardwareSpec& hardware, const SimulateOptions& options = {});

}  // namespace shardplan
