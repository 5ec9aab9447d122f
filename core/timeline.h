// What happened over one phase on one rank, predicted or measured: the same type and file format for both.
//
// Time is integer nanoseconds from the start of the phase. Memory is requested bytes by category: the level after
// every task, the peak inside every task, and (as far as recorded) every single change. Comparing two Timelines of the
// same program is comparing task by task.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/ids.h"
#include "core/memory_category.h"
#include "core/step_program.h"

namespace shardplan {

enum class TimelineSource : std::uint8_t { Simulated, Measured };

struct TaskSpan {
  TaskId task;
  TaskKind kind = TaskKind::Forward;
  StreamId stream;
  std::int32_t micro_step = 0;
  std::chrono::nanoseconds start{0};
  std::chrono::nanoseconds end{0};
  std::int64_t peak_requested_bytes = 0;   // highest level while the task ran, device
  std::int64_t after_requested_bytes = 0;  // level when it had ended, device
  std::string label;
  bool operator==(const TaskSpan&) const = default;
};

// One change of memory. `level` is kept out: it follows by summation.
struct MemoryChange {
  std::chrono::nanoseconds at{0};
  MemoryCategory category = MemoryCategory::Temp;
  Place place = Place::Device;
  std::int64_t delta_bytes = 0;
  TaskId task;
  bool operator==(const MemoryChange&) const = default;
};

struct CollectiveTotal {
  CollectiveKind kind = CollectiveKind::AllGather;
  std::string axis;
  std::int64_t calls = 0;
  std::int64_t bytes_per_rank = 0;  // sum of CollectiveWork::bytes
  std::chrono::nanoseconds busy{0};
  std::chrono::nanoseconds exposed{0};  // while the compute stream had nothing to do but wait
  bool operator==(const CollectiveTotal&) const = default;
};

struct Timeline {
  TimelineSource source = TimelineSource::Simulated;
  Phase phase = Phase::Step2;
  std::int32_t rank = 0;
  std::vector<StreamKind> streams;
  std::vector<TaskSpan> tasks;            // in program order
  std::vector<MemoryChange> memory;       // ordered by time, then program order
  CategoryBytes at_start;                 // device, resident buffers
  std::int64_t peak_requested_bytes = 0;  // device
  TaskId peak_task;
  CategoryBytes at_peak;  // device; adds up to peak_requested_bytes
  std::int64_t host_peak_bytes = 0;
  std::chrono::nanoseconds duration{0};
  std::vector<CollectiveTotal> collectives;  // by kind, then axis
  bool operator==(const Timeline&) const = default;
};

// First task whose level after it, or peak inside it, differs. Empty when all agree and the programs have the same tasks.
struct TimelineDifference {
  std::string task;
  std::int64_t predicted_bytes = 0;
  std::int64_t measured_bytes = 0;
  std::string what;  // "after", "peak" or "tasks"
};
[[nodiscard]] std::optional<TimelineDifference> first_difference(const Timeline& predicted, const Timeline& measured);

}  // namespace shardplan
