#include "executor/streams.h"

namespace shardplan {

void SynchronousStreams::begin_phase(const StepProgram& program) {
  times_.assign(program.tasks.size(), {});
  start_ = std::chrono::steady_clock::now();
}

void SynchronousStreams::begin_task(TaskId task, StreamId, std::span<const TaskId>) {
  times_[task.at()].start = std::chrono::steady_clock::now() - start_;
}

void SynchronousStreams::end_task(TaskId task) { times_[task.at()].end = std::chrono::steady_clock::now() - start_; }

std::vector<TaskInterval> SynchronousStreams::end_phase() { return std::move(times_); }

}  // namespace shardplan
