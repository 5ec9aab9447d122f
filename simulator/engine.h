// The clock of a StepProgram: when each task starts and ends, and when its collective runs inside it.
//
// Streams are in-order queues; a task starts when the task before it on its stream and every task it waits on have ended. A Gather
// runs its kernels (the cast of the own stretch) and then its collective, every other task its collective and then its kernels.
// Collectives share links (link_network.h). `synchronous`: every task also waits for the one before it in program order.
//
// Units: integer nanoseconds from the start of the phase. Requires: validate(program) passes.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "core/hardware_spec.h"
#include "core/step_program.h"
#include "simulator/collectives.h"
#include "simulator/simulate.h"

namespace shardplan {

struct Interval {
  std::chrono::nanoseconds start{0};
  std::chrono::nanoseconds end{0};
  [[nodiscard]] std::chrono::nanoseconds length() const { return end - start; }
  bool operator==(const Interval&) const = default;
};

struct TaskTimes {
  Interval task;
  Interval collective;                        // empty, at the start or end of the task, where there is none
  std::chrono::nanoseconds kernels_start{0};  // of kernel 0; the others follow without gap
};

// What the clock needs to know of a task: how long its parts take alone, and whom it waits for.
struct ClockTask {
  StreamId stream;
  bool kernels_first = false;  // a Gather
  bool has_collective = false;
  std::chrono::nanoseconds kernels{0};  // all of them, without gap
  CollectiveCost collective;
  std::int32_t first_wait = 0, end_wait = 0;  // of ClockProgram::waits
};

// A program as the clock sees it. The search makes it without the program (planner/search/step_clock.h).
struct ClockProgram {
  std::int32_t num_streams = 0;
  std::vector<ClockTask> tasks;  // by TaskId
  std::vector<TaskId> waits;     // earlier tasks, task by task
};

[[nodiscard]] ClockProgram clock_program(const StepProgram& program, const HardwareSpec& hardware, std::int32_t ranks_per_node);

// By TaskId.
[[nodiscard]] std::vector<TaskTimes> run_clock(const ClockProgram& program, bool synchronous);
[[nodiscard]] std::vector<TaskTimes> run_clock(const StepProgram& program, const HardwareSpec& hardware,
                                               const SimulateOptions& options);

}  // namespace shardplan
