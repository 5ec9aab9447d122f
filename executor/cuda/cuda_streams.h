// Streams and events of a device: tasks of one stream run in order, tasks of different streams wait for each other's events.
//
// Nothing blocks the host before end_phase. A task's times are those of its own events, in nanoseconds from begin_phase.
// Errors: DeviceError from the runtime, translated where the phase ends.
#pragma once

#include <ATen/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAStream.h>

#include <optional>
#include <vector>

#include "executor/streams.h"

namespace shardplan {

class CudaStreams final : public Streams {
 public:
  explicit CudaStreams(c10::DeviceIndex device);
  void begin_phase(const StepProgram& program) override;
  void begin_task(TaskId task, StreamId stream, std::span<const TaskId> waits_on) override;
  void end_task(TaskId task) override;
  [[nodiscard]] std::vector<TaskInterval> end_phase() override;

 private:
  [[nodiscard]] c10::cuda::CUDAStream stream_of(StreamId id);

  c10::DeviceIndex device_;
  std::vector<c10::cuda::CUDAStream> streams_;  // by StreamId; the first is the device's default stream
  std::vector<StreamId> stream_of_task_;
  std::vector<at::cuda::CUDAEvent> started_, ended_;  // by TaskId
  std::optional<at::cuda::CUDAEvent> phase_start_;
};

}  // namespace shardplan
