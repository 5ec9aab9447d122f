#include "planner/search/step_clock.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/error.h"
#include "simulator/cost_model.h"

namespace shardplan {

using std::chrono::nanoseconds;

StepClock::StepClock(const HardwareSpec& hardware, const MeshDegrees& mesh, std::int32_t ranks_per_node)
    : hardware_(hardware),
      axes_{{.name = "shard", .degree = mesh.shard, .stride = 1}, {.name = "replicate", .degree = mesh.replicate, .stride = mesh.shard}},
      ranks_per_node_(ranks_per_node) {
  program_.num_streams = 4;
}

TaskId StepClock::begin(const TaskHead& head) {
  if (head.kind == TaskKind::Input) micro_steps_.push_back(static_cast<std::int32_t>(program_.tasks.size()));
  const std::int32_t wait = static_cast<std::int32_t>(program_.waits.size());
  program_.tasks.push_back({.stream = head.stream, .kernels_first = head.kind == TaskKind::Gather, .first_wait = wait, .end_wait = wait});
  return TaskId(static_cast<std::int64_t>(program_.tasks.size()) - 1);
}

void StepClock::wait(TaskId earlier) { program_.waits.push_back(earlier); }

void StepClock::kernel(const KernelWork& work) { program_.tasks.back().kernels += kernel_time(work, hardware_); }

void StepClock::collective(const CollectiveWork& work) {
  program_.tasks.back().has_collective = true;
  program_.tasks.back().collective = collective_cost(work, axes_[work.axis.at()], hardware_, ranks_per_node_);
}

void StepClock::body(const SegmentBody& body, std::span<const OutsideDecision>) { program_.tasks.back().kernels += nanoseconds(body.nanoseconds); }

void StepClock::end() { program_.tasks.back().end_wait = static_cast<std::int32_t>(program_.waits.size()); }

void StepClock::stretch(std::int32_t grad_accum) {
  CHECK(micro_steps_.size() == kMicroSteps && grad_accum >= kMicroSteps, "a step is stretched from four micro-steps");
  const std::int32_t first = micro_steps_[2], last = micro_steps_[3], length = last - first;
  const ClockProgram short_one = std::move(program_);
  program_ = {.num_streams = short_one.num_streams};
  const auto copy = [&](std::int32_t from, std::int32_t to, std::int32_t shift) {
    for (std::int32_t t = from; t < to; ++t) {
      ClockTask task = short_one.tasks[static_cast<std::size_t>(t)];
      const std::int32_t first_wait = static_cast<std::int32_t>(program_.waits.size());
      for (std::int32_t w = task.first_wait; w < task.end_wait; ++w) {
        const TaskId awaited = short_one.waits[static_cast<std::size_t>(w)];
        CHECK(shift == 0 || awaited.value >= micro_steps_[1], "a task waits for its own micro-step or the one before");
        program_.waits.emplace_back(awaited.value + shift);
      }
      task.first_wait = first_wait;
      task.end_wait = static_cast<std::int32_t>(program_.waits.size());
      program_.tasks.push_back(task);
    }
  };
  const std::int32_t repeats = grad_accum - kMicroSteps;
  copy(0, last, 0);
  for (std::int32_t r = 1; r <= repeats; ++r) copy(first, last, r * length);
  copy(last, static_cast<std::int32_t>(short_one.tasks.size()), repeats * length);
}

nanoseconds StepClock::duration(bool synchronous) const {
  nanoseconds end{0};
  for (const TaskTimes& times : run_clock(program_, synchronous)) end = std::max(end, times.task.end);
  return end;
}

nanoseconds StepClock::least_duration(bool synchronous) const {
  std::vector<nanoseconds> ends(program_.tasks.size());
  std::vector<nanoseconds> streams(static_cast<std::size_t>(program_.num_streams));
  for (std::size_t i = 0; i < program_.tasks.size(); ++i) {
    const ClockTask& task = program_.tasks[i];
    nanoseconds& stream = streams[synchronous ? 0 : task.stream.at()];
    nanoseconds start = stream;
    for (std::int32_t w = task.first_wait; w < task.end_wait; ++w) start = std::max(start, ends[program_.waits[static_cast<std::size_t>(w)].at()]);
    stream = ends[i] = start + task.kernels + task.collective.alone();
  }
  return ends.empty() ? nanoseconds{0} : *std::max_element(ends.begin(), ends.end());
}

}  // namespace shardplan
