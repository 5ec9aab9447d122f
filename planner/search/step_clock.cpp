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
      axes_{{.name = "shard", .degree = mesh.shard, .stride = 1},
            {.name = "replicate", .degree = mesh.replicate, .stride = mesh.shard}},
      ranks_per_node_(ranks_per_node) {
  program_.num_streams = 4;
}

TaskId StepClock::begin(const TaskHead& head) {
  if (head.kind == TaskKind::Input) micro_steps_.push_back(static_cast<std::int32_t>(program_.tasks.size()));
  const std::int32_t wait = static_cast<std::int32_t>(program_.waits.size());
  program_.tasks.push_back(
      {.stream = head.stream, .kernels_first = head.kind == TaskKind::Gather, .first_wait = wait, .end_wait = wait});
  return TaskId(static_cast<std::int64_t>(program_.tasks.size()) - 1);
}

void StepClock::wait(TaskId earlier) { program_.waits.push_back(earlier); }

void StepClock::kernel(const KernelWork& work) { program_.tasks.back().kernels += kernel_time(work, hardware_); }

void StepClock::collective(const CollectiveWork& work) {
  program_.tasks.back().has_collective = true;
  program_.tasks.back().collective = collective_cost(work, axes_[work.axis.at()], hardware_, ranks_per_node_);
}

void StepClock::body(const SegmentBody& body, std::span<const OutsideDecision>) {
  program_.tasks.back().kernels += nanoseconds(body.nanoseconds);
}

void StepClock::end() { program_.tasks.back().end_wait = static_cast<std::int32_t>(program_.waits.size()); }

void StepClock::stretch(std::int32_t grad_accum) {
  CHECK(micro_steps_.size() == kMicroSteps && grad_accum >= kMicroSteps, "a step is stretched from four micro-steps");
  const std::int32_t second = micro_steps_[1], third = micro_steps_[2];
  CHECK(third - second == micro_steps_[3] - third, "micro-steps in the middle do the same");
  for (std::size_t t = static_cast<std::size_t>(third); t < program_.tasks.size(); ++t) {
    for (std::int32_t w = program_.tasks[t].first_wait; w < program_.tasks[t].end_wait; ++w)
      CHECK(program_.waits[static_cast<std::size_t>(w)].value >= second, "a task waits for its own micro-step or the one before");
  }
  repeats_ = grad_accum - kMicroSteps;
}

ClockProgram StepClock::stretched() const {
  const std::int32_t first = micro_steps_[2], last = micro_steps_[3], length = last - first;
  ClockProgram program{.num_streams = program_.num_streams};
  const auto copy = [&](std::int32_t from, std::int32_t to, std::int32_t shift) {
    for (std::int32_t t = from; t < to; ++t) {
      ClockTask task = program_.tasks[static_cast<std::size_t>(t)];
      const std::int32_t first_wait = static_cast<std::int32_t>(program.waits.size());
      for (std::int32_t w = task.first_wait; w < task.end_wait; ++w)
        program.waits.emplace_back(program_.waits[static_cast<std::size_t>(w)].value + shift);
      task.first_wait = first_wait;
      task.end_wait = static_cast<std::int32_t>(program.waits.size());
      program.tasks.push_back(task);
    }
  };
  program.tasks.reserve(program_.tasks.size() + static_cast<std::size_t>(repeats_ * length));
  copy(0, last, 0);
  for (std::int32_t r = 1; r <= repeats_; ++r) copy(first, last, r * length);
  copy(last, static_cast<std::int32_t>(program_.tasks.size()), repeats_ * length);
  return program;
}

nanoseconds StepClock::duration(bool synchronous) const {
  nanoseconds end{0};
  for (const TaskTimes& times : repeats_ > 0 ? run_clock(stretched(), synchronous) : run_clock(program_, synchronous))
    end = std::max(end, times.task.end);
  return end;
}

// [Note: repeated micro-steps] A micro-step reads the ends of the one before and of its streams, by maximum and sum alone. Once a
// micro-step ends `shift` later than the one before in every task, all further ones do: they need not be looked at.
nanoseconds StepClock::least_duration(bool synchronous) const {
  const auto num_tasks = static_cast<std::int32_t>(program_.tasks.size());
  std::vector<nanoseconds> ends(program_.tasks.size());
  std::vector<nanoseconds> streams(static_cast<std::size_t>(program_.num_streams));
  nanoseconds latest{0};
  const auto run = [&](std::int32_t from, std::int32_t to) {
    for (std::int32_t i = from; i < to; ++i) {
      const ClockTask& task = program_.tasks[static_cast<std::size_t>(i)];
      nanoseconds& stream = streams[synchronous ? 0 : task.stream.at()];
      nanoseconds start = stream;
      for (std::int32_t w = task.first_wait; w < task.end_wait; ++w)
        start = std::max(start, ends[program_.waits[static_cast<std::size_t>(w)].at()]);
      stream = ends[static_cast<std::size_t>(i)] = start + task.kernels + task.collective.alone();
      latest = std::max(latest, stream);
    }
  };
  if (repeats_ == 0) {
    run(0, num_tasks);
    return latest;
  }
  const std::int32_t first = micro_steps_[2], last = micro_steps_[3], length = last - first;
  const auto begin = ends.begin() + first, end = ends.begin() + last;
  run(0, last);
  for (std::int32_t left = repeats_; left > 0; --left) {
    std::copy(begin, end, begin - length);
    run(first, last);
    const nanoseconds shift = *begin - *(begin - length);
    if (!std::equal(begin, end, begin - length, [&](nanoseconds now, nanoseconds before) { return now - before == shift; }))
      continue;
    const nanoseconds rest = (left - 1) * shift;
    for (auto e = begin - length; e != end; ++e) *e += rest;
    std::vector<bool> runs(streams.size());
    for (std::int32_t i = first; i < last; ++i)
      runs[synchronous ? 0 : program_.tasks[static_cast<std::size_t>(i)].stream.at()] = true;
    for (std::size_t s = 0; s < streams.size(); ++s)
      if (runs[s]) streams[s] += rest;
    latest = std::max(latest, *std::max_element(begin, end));
    break;
  }
  run(last, num_tasks);
  return latest;
}

}  // namespace shardplan
