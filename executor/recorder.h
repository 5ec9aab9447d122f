// Makes the measured Timeline of a phase: levels and peaks of memory around every task, and their times.
//
// Levels are bytes above what the process held before the program's first buffer. The last word on times is the streams', which
// know when a task really ran.
#pragma once

#include <cstdint>
#include <vector>

#include "core/timeline.h"
#include "executor/memory_meter.h"
#include "executor/rank_state.h"
#include "executor/streams.h"

namespace shardplan {

class Recorder {
 public:
  // Starts the phase. `logs`: keep every change of memory.
  Recorder(const StepProgram& program, const RankState& state, Streams& streams, MemoryMeter& memory, bool logs);

  void begin_task(TaskId task);
  void end_task(TaskId task);

  // Waits for the streams.
  [[nodiscard]] Timeline finish(std::int32_t rank);
  [[nodiscard]] std::int64_t workspace_peak_bytes() const { return workspace_peak_bytes_; }

 private:
  void note_peak(const MemoryReading& reading, TaskId task);

  const StepProgram& program_;
  const RankState& state_;
  Streams& streams_;
  MemoryMeter& memory_;
  bool logs_;
  Timeline timeline_;
  std::int64_t workspace_peak_bytes_ = 0;
};

// Calls, bytes and times of each collective of a program, from the spans of its tasks. A collective is exposed while no task of the
// compute stream runs.
[[nodiscard]] std::vector<CollectiveTotal> collective_totals(const StepProgram& program, const std::vector<TaskSpan>& spans);

}  // namespace shardplan
