#include "simulator/memory_levels.h"

#include <algorithm>

#include "simulator/cost_model.h"

namespace shardplan {
namespace {

using std::chrono::nanoseconds;

// Instants of the kernels of one task, asked for in ascending order.
class KernelClock {
 public:
  KernelClock(const Task& task, const TaskTimes& times, const HardwareSpec& hardware)
      : task_(task), hardware_(hardware), start_(times.kernels_start), task_end_(times.task.end) {
    end_ = task.kernels.empty() ? start_ : start_ + kernel_time(task.kernels.front(), hardware);
  }
  // An effect may name a kernel beyond the last: what happens after all kernels.
  [[nodiscard]] nanoseconds at(const Effect& effect) {
    while (kernel_ < effect.kernel && position() < task_.kernels.size()) {
      ++kernel_;
      start_ = end_;
      if (position() < task_.kernels.size()) end_ += kernel_time(task_.kernels[position()], hardware_);
    }
    if (position() >= task_.kernels.size()) return task_end_;
    return effect.kind == EffectKind::Allocate ? start_ : end_;
  }

 private:
  [[nodiscard]] std::size_t position() const { return static_cast<std::size_t>(kernel_); }
  const Task& task_;
  const HardwareSpec& hardware_;
  std::int32_t kernel_ = 0;
  nanoseconds start_, end_, task_end_;
};

class Levels {
 public:
  Levels(Timeline& timeline, const StepProgram& program) : timeline_(timeline), program_(program) {
    for (const BufferId id : program.resident) {
      const Buffer& buffer = program.buffers[id.at()];
      (buffer.place == Place::Device ? device_ : host_) += buffer.bytes;
      if (buffer.place == Place::Device) now_[buffer.category] += buffer.bytes;
    }
    timeline.at_start = now_;
    timeline.at_peak = now_;
    timeline.peak_requested_bytes = device_;
    timeline.host_peak_bytes = host_;
  }

  void apply(const Effect& effect, TaskId task, TaskSpan& span) {
    const Buffer& buffer = program_.buffers[effect.buffer.at()];
    const std::int64_t delta = effect.kind == EffectKind::Allocate ? buffer.bytes : -buffer.bytes;
    if (buffer.place == Place::Host) {
      host_ += delta;
      timeline_.host_peak_bytes = std::max(timeline_.host_peak_bytes, host_);
      return;
    }
    device_ += delta;
    now_[buffer.category] += delta;
    span.peak_requested_bytes = std::max(span.peak_requested_bytes, device_);
    if (device_ > timeline_.peak_requested_bytes) {
      timeline_.peak_requested_bytes = device_;
      timeline_.peak_task = task;
      timeline_.at_peak = now_;
    }
  }

  [[nodiscard]] std::int64_t device_bytes() const { return device_; }

 private:
  Timeline& timeline_;
  const StepProgram& program_;
  CategoryBytes now_;
  std::int64_t device_ = 0, host_ = 0;
};

// Every MemoryChange of one task; returns the instant up to which the host has come.
nanoseconds record_changes(Timeline& timeline, const StepProgram& program, TaskId id, const TaskTimes& times,
                           const HardwareSpec& hardware, nanoseconds host, bool timed_by_kernels) {
  const Task& task = program.tasks[id.at()];
  KernelClock kernels(task, times, hardware);
  for (const Effect& effect : task.effects) {
    const Buffer& buffer = program.buffers[effect.buffer.at()];
    if (timed_by_kernels) host = std::max(host, kernels.at(effect));
    timeline.memory.push_back({.at = host,
                               .category = buffer.category,
                               .place = buffer.place,
                               .delta_bytes = effect.kind == EffectKind::Allocate ? buffer.bytes : -buffer.bytes,
                               .task = id});
  }
  return timed_by_kernels ? std::max(host, times.task.end) : host;
}

}  // namespace

void add_memory(Timeline& timeline, const StepProgram& program, const std::vector<TaskTimes>& times, const HardwareSpec& hardware,
                const SimulateOptions& options) {
  Levels levels(timeline, program);
  nanoseconds host{0};
  for (std::size_t i = 0; i < program.tasks.size(); ++i) {
    const Task& task = program.tasks[i];
    const TaskId id(static_cast<std::int64_t>(i));
    TaskSpan& span = timeline.tasks[i];
    span.peak_requested_bytes = levels.device_bytes();
    for (const Effect& effect : task.effects) levels.apply(effect, id, span);
    span.after_requested_bytes = levels.device_bytes();
    if (!options.record_memory) continue;
    const bool timed_by_kernels = options.synchronous || program.streams[task.stream.at()] == StreamKind::Compute;
    host = record_changes(timeline, program, id, times[i], hardware, host, timed_by_kernels);
  }
}

}  // namespace shardplan
