// Counts the device memory one rank needs over a StepProgram, by category.
//
// Walks the effects in program order: what the program asks the allocator for. Leaves out rounding, fragmentation, context and
// communication library. Never fails because a plan does not fit.
// Units: bytes, before allocator rounding; with `rounding_bytes` each buffer is rounded up to a multiple of it, the surplus in
// Rounding.
#pragma once

#include <cstdint>

#include "core/step_program.h"

namespace shardplan {

struct MemoryCount {
  std::int64_t peak_bytes = 0;  // device; peak of the sum over categories, not the sum of the peaks
  TaskId peak_task;             // unset when the resident buffers alone are the peak
  CategoryBytes at_peak;        // adds up to peak_bytes
  std::int64_t host_peak_bytes = 0;
  std::int64_t end_bytes = 0;  // device, after the last task
};

[[nodiscard]] MemoryCount count_memory(const StepProgram& program, std::int64_t rounding_bytes = 1);

}  // namespace shardplan
