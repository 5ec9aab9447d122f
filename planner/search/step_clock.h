// The clock's view of a step, made straight from the schedule: what simulate() would time, without making the program.
//
// Law (tests): run_clock on it ends when simulate() of the full program ends, to the nanosecond.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "core/hardware_spec.h"
#include "planner/lowering/task_sink.h"
#include "simulator/engine.h"

namespace shardplan {

class StepClock final : public TaskSink {
 public:
  // Bodies handed to this must carry their time (BodyOptions::kernel_nanoseconds).
  StepClock(const HardwareSpec& hardware, const MeshDegrees& mesh, std::int32_t ranks_per_node);

  void resident(const BufferKey&, std::int64_t, MemoryCategory) override {}
  TaskId begin(const TaskHead& head) override;
  void wait(TaskId earlier) override;
  void allocate(const BufferKey&, std::int64_t, MemoryCategory) override {}
  void release(const BufferKey&, std::int64_t) override {}
  void kernel(const KernelWork& work) override;
  void collective(const CollectiveWork& work) override;
  void body(const SegmentBody& body, std::span<const OutsideDecision> decisions) override;
  void end() override;

  // Times the third of kMicroSteps micro-steps until there are `grad_accum`: all between the first two and the last do the same.
  static constexpr std::int32_t kMicroSteps = 4;
  void stretch(std::int32_t grad_accum);

  // With collectives sharing links.
  [[nodiscard]] std::chrono::nanoseconds duration(bool synchronous) const;
  // With every collective alone on its links: never above duration().
  [[nodiscard]] std::chrono::nanoseconds least_duration(bool synchronous) const;

 private:
  [[nodiscard]] ClockProgram stretched() const;

  const HardwareSpec& hardware_;
  MeshAxis axes_[2];  // by AxisId
  std::int32_t ranks_per_node_;
  ClockProgram program_;
  std::vector<std::int32_t> micro_steps_;  // first task of each
  std::int32_t repeats_ = 0;               // of the third micro-step, after its own time
};

}  // namespace shardplan
