// Streams and events as the interpreter uses them, and the clock that times its tasks.
//
// A task runs on one stream, after the previous task of that stream and after every task it waits on. On CUDA begin_task makes the
// stream current and lets it wait for the events of those tasks, end_task records the task's event; nothing blocks the host. On CPU
// tasks run one by one in program order, so that there is nothing to wait for.
//
// Times are nanoseconds from begin_phase.
#pragma once

#include <chrono>
#include <span>
#include <vector>

#include "core/ids.h"
#include "core/step_program.h"

namespace shardplan {

struct TaskInterval {
  std::chrono::nanoseconds start{0};
  std::chrono::nanoseconds end{0};
};

class Streams {
 public:
  virtual ~Streams() = default;
  virtual void begin_phase(const StepProgram& program) = 0;
  virtual void begin_task(TaskId task, StreamId stream, std::span<const TaskId> waits_on) = 0;
  virtual void end_task(TaskId task) = 0;
  // Waits for all tasks; times by TaskId.
  [[nodiscard]] virtual std::vector<TaskInterval> end_phase() = 0;
};

class SynchronousStreams final : public Streams {
 public:
  void begin_phase(const StepProgram& program) override;
  void begin_task(TaskId task, StreamId stream, std::span<const TaskId> waits_on) override;
  void end_task(TaskId task) override;
  [[nodiscard]] std::vector<TaskInterval> end_phase() override;

 private:
  std::chrono::steady_clock::time_point start_;
  std::vector<TaskInterval> times_;
};

}  // namespace shardplan
