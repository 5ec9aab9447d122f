// The replay of the caching allocator as a snapshot for pytorch.org/memory_viz and torch.cuda._memory_viz.
//
// The same dictionary that torch.cuda.memory._dump_snapshot pickles: every event of the allocator in order, and its segments at the
// end. In the place of a Python stack stands where a buffer comes from: its category, number and label, below it phase, number and
// label of the task. Events carry their memory category, by which the page colours; those of segments say "unknown".
// docs/memory_snapshot.md names every key.
//
// Errors: CHECK when there are timelines, but not one with the same tasks for every program.
// Source: torch/cuda/memory.py (_snapshot), torch/utils/viz/MemoryViz.js.
#pragma once

#include <span>
#include <string>

#include "core/step_program.h"
#include "core/timeline.h"
#include "simulator/allocator_options.h"

namespace shardplan {

// The programs follow each other on one allocator (simulator/allocator_replay.h). With timelines, one for each, an event has the
// time at which its task starts, phase after phase; without, its number. When the device runs out, the snapshot ends with that
// event.
[[nodiscard]] std::string memory_snapshot(std::span<const StepProgram> programs, const CachingAllocatorOptions& options,
                                          std::span<const Timeline> timelines = {});

}  // namespace shardplan
