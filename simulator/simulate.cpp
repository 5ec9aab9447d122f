#include "simulator/simulate.h"

#include <algorithm>

#include "simulator/engine.h"
#include "simulator/exposed_time.h"
#include "simulator/memory_levels.h"

namespace shardplan {
namespace {

std::vector<TaskSpan> spans_of(const StepProgram& program, const std::vector<TaskTimes>& times) {
  std::vector<TaskSpan> spans;
  spans.reserve(program.tasks.size());
  for (std::size_t i = 0; i < program.tasks.size(); ++i) {
    const Task& task = program.tasks[i];
    spans.push_back({.task = TaskId(static_cast<std::int64_t>(i)),
                     .kind = task.kind,
                     .stream = task.stream,
                     .micro_step = task.micro_step,
                     .start = times[i].task.start,
                     .end = times[i].task.end,
                     .peak_requested_bytes = 0,
                     .after_requested_bytes = 0,
                     .label = task.label});
  }
  return spans;
}

// By kind, then by the axis' place in the mesh; kinds and axes without a call are left out.
std::vector<CollectiveTotal> collective_totals(const StepProgram& program, const std::vector<TaskTimes>& times) {
  const std::vector<std::chrono::nanoseconds> exposed = exposed_times(program, times);
  constexpr std::size_t kNumKinds = 4;
  std::vector<CollectiveTotal> table(kNumKinds * program.mesh.size());
  for (std::size_t i = 0; i < program.tasks.size(); ++i) {
    if (!program.tasks[i].collective) continue;
    const CollectiveWork& work = *program.tasks[i].collective;
    CollectiveTotal& total = table[static_cast<std::size_t>(work.kind) * program.mesh.size() + work.axis.at()];
    total.kind = work.kind;
    total.axis = program.mesh[work.axis.at()].name;
    ++total.calls;
    total.bytes_per_rank += work.bytes;
    total.busy += times[i].collective.length();
    total.exposed += exposed[i];
  }
  std::erase_if(table, [](const CollectiveTotal& total) { return total.calls == 0; });
  return table;
}

}  // namespace

Timeline simulate(const StepProgram& program, const HardwareSpec& hardware, const SimulateOptions& options) {
  const std::vector<TaskTimes> times = run_clock(program, hardware, options);
  Timeline timeline;
  timeline.source = TimelineSource::Simulated;
  timeline.phase = program.phase;
  timeline.streams = program.streams;
  timeline.tasks = spans_of(program, times);
  for (const TaskSpan& span : timeline.tasks) timeline.duration = std::max(timeline.duration, span.end);
  add_memory(timeline, program, times, hardware, options);
  timeline.collectives = collective_totals(program, times);
  return timeline;
}

}  // namespace shardplan
