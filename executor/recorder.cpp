#include "executor/recorder.h"

#include <algorithm>
#include <map>
#include <utility>

namespace shardplan {
namespace {

CategoryBytes minus(CategoryBytes a, const CategoryBytes& b) {
  for (std::size_t i = 0; i < a.bytes.size(); ++i) a.bytes[i] -= b.bytes[i];
  return a;
}

// Length of [start, end) not covered by `busy`, which is ordered and disjoint.
std::chrono::nanoseconds uncovered(const TaskSpan& span, const std::vector<TaskSpan>& busy) {
  std::chrono::nanoseconds covered{0};
  for (const TaskSpan& b : busy)
    covered += std::max(std::chrono::nanoseconds{0}, std::min(span.end, b.end) - std::max(span.start, b.start));
  return span.end - span.start - covered;
}

}  // namespace

Recorder::Recorder(const StepProgram& program, const RankState& state, Streams& streams, MemoryMeter& memory, bool logs)
    : program_(program), state_(state), streams_(streams), memory_(memory), logs_(logs) {
  timeline_.source = TimelineSource::Measured;
  timeline_.phase = program.phase;
  timeline_.streams = program.streams;
  timeline_.tasks.reserve(program.tasks.size());
  memory_.restart_peak();
  const MemoryReading reading = memory_.read();
  timeline_.at_start = minus(reading.current, state_.base_by_category);
  timeline_.at_peak = timeline_.at_start;
  timeline_.peak_requested_bytes = reading.current_bytes - state_.base_bytes;
  streams_.begin_phase(program);
  if (logs_) memory_.start_log(std::chrono::steady_clock::now());
}

void Recorder::note_peak(const MemoryReading& reading, TaskId task) {
  workspace_peak_bytes_ = std::max(workspace_peak_bytes_, reading.workspace_peak_bytes);
  const std::int64_t peak = reading.peak_bytes - state_.base_bytes;
  if (peak <= timeline_.peak_requested_bytes) return;
  timeline_.peak_requested_bytes = peak;
  timeline_.peak_task = task;
  timeline_.at_peak = minus(reading.at_peak, state_.base_by_category);
}

void Recorder::begin_task(TaskId task) {
  memory_.restart_peak();
  if (logs_) memory_.set_logged_task(task);
  const Task& t = program_.tasks[task.at()];
  streams_.begin_task(task, t.stream, t.waits_on);
}

void Recorder::end_task(TaskId task) {
  streams_.end_task(task);
  const Task& t = program_.tasks[task.at()];
  const MemoryReading reading = memory_.read();
  note_peak(reading, task);
  timeline_.tasks.push_back({.task = task,
                             .kind = t.kind,
                             .stream = t.stream,
                             .micro_step = t.micro_step,
                             .peak_requested_bytes = reading.peak_bytes - state_.base_bytes,
                             .after_requested_bytes = reading.current_bytes - state_.base_bytes,
                             .label = t.label});
}

Timeline Recorder::finish(std::int32_t rank) {
  const std::vector<TaskInterval> times = streams_.end_phase();
  timeline_.rank = rank;
  for (TaskSpan& span : timeline_.tasks) {
    span.start = times[span.task.at()].start;
    span.end = times[span.task.at()].end;
    timeline_.duration = std::max(timeline_.duration, span.end);
  }
  if (logs_) timeline_.memory = memory_.take_log();
  timeline_.collectives = collective_totals(program_, timeline_.tasks);
  return std::move(timeline_);
}

std::vector<CollectiveTotal> collective_totals(const StepProgram& program, const std::vector<TaskSpan>& spans) {
  std::vector<TaskSpan> compute;
  for (const TaskSpan& span : spans)
    if (program.streams[span.stream.at()] == StreamKind::Compute) compute.push_back(span);
  std::map<std::pair<CollectiveKind, AxisId>, CollectiveTotal> totals;
  for (const TaskSpan& span : spans) {
    const std::optional<CollectiveWork>& work = program.tasks[span.task.at()].collective;
    if (!work) continue;
    CollectiveTotal& total = totals[{work->kind, work->axis}];
    total.kind = work->kind;
    total.axis = program.mesh[work->axis.at()].name;
    total.calls += 1;
    total.bytes_per_rank += work->bytes;
    total.busy += span.end - span.start;
    const bool on_compute = program.streams[span.stream.at()] == StreamKind::Compute;
    total.exposed += on_compute ? span.end - span.start : uncovered(span, compute);
  }
  std::vector<CollectiveTotal> ordered;
  for (auto& [key, total] : totals) ordered.push_back(std::move(total));
  return ordered;
}

}  // namespace shardplan
