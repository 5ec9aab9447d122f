// What PyTorch's caching allocator makes of StepPrograms: allocated, active and reserved memory, computed, not guessed.
//
// The Allocate and Free effects are replayed in program order (the order in which the host runs), each buffer in the pool of its
// stream `Buffer::pool` (unset: stream 0), resident buffers first, in ascending order. Several programs follow each other on one
// allocator: a resident buffer of a program is the block that an earlier one left behind under the same label, category, size and
// pool; what was left behind and is not resident is freed between the programs; cached segments stay.
//
// Leaves out host buffers, buffers of no bytes, and blocks that wait for another stream: programs order their reuse by waits, so
// active equals allocated. Needs no times. Same input, same result.
// Units: bytes. Errors: running out is a value; CHECK when a program frees what is not alive.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "core/ids.h"
#include "core/memory_category.h"
#include "core/step_program.h"
#include "simulator/allocator_options.h"
#include "simulator/caching_allocator.h"

namespace shardplan {

struct AllocatorPeak {
  std::int64_t bytes = 0;
  std::int32_t program = 0;  // position in what was replayed
  TaskId task;               // the first to reach it; unset: already there when the program began
  bool operator==(const AllocatorPeak&) const = default;
};

struct AllocatorPeaks {
  AllocatorPeak requested;
  AllocatorPeak allocated;
  AllocatorPeak active;
  AllocatorPeak reserved;
  bool operator==(const AllocatorPeaks&) const = default;
};

// Where the device ran out; the replay ends there.
struct ReplayFailure {
  std::int32_t program = 0;
  TaskId task;  // unset: while the resident buffers were placed
  BufferId buffer;
  OutOfMemory out_of_memory;
  bool operator==(const ReplayFailure&) const = default;
};

struct AllocatorReplay {
  AllocatorPeaks peaks;                    // over all programs
  std::vector<AllocatorPeaks> by_program;  // within each, levels at its start included
  CategoryBytes at_allocated_peak;         // with Rounding; adds up to peaks.allocated.bytes
  AllocatorStats stats;                    // at the end
  std::optional<ReplayFailure> failure;
  bool operator==(const AllocatorReplay&) const = default;
};

[[nodiscard]] AllocatorReplay replay_allocator(std::span<const StepProgram> programs, const CachingAllocatorOptions& options);
[[nodiscard]] AllocatorReplay replay_allocator(const StepProgram& program, const CachingAllocatorOptions& options);

// Whose doing an event or a block is.
struct AllocationCause {
  std::int32_t program = 0;
  TaskId task;  // unset: between the programs
  BufferId buffer;
  bool operator==(const AllocationCause&) const = default;
};

struct TracedReplay {
  AllocatorReplay replay;
  std::vector<AllocatorEvent> events;
  std::vector<AllocationCause> causes;        // by event
  std::vector<SegmentView> segments;          // at the end
  std::vector<AllocationCause> block_causes;  // by BlockId; of blocks in use: who allocated them
};
[[nodiscard]] TracedReplay trace_allocator(std::span<const StepProgram> programs, const CachingAllocatorOptions& options);

}  // namespace shardplan
