#include <c10/util/Logging.h>  // before core/error.h, whose CHECK replaces the one here

#include "executor/cuda/cuda_streams.h"

#include <c10/cuda/CUDAFunctions.h>
#include <cuda_runtime_api.h>

#include <cmath>

#include "core/error.h"

namespace shardplan {
namespace {

std::chrono::nanoseconds between(const at::cuda::CUDAEvent& from, const at::cuda::CUDAEvent& to) {
  return std::chrono::nanoseconds(
      std::llround(static_cast<double>(from.elapsed_time(to)) * 1e6));  // the runtime gives milliseconds
}

}  // namespace

CudaStreams::CudaStreams(c10::DeviceIndex device) : device_(device) { streams_.push_back(c10::cuda::getDefaultCUDAStream(device)); }

c10::cuda::CUDAStream CudaStreams::stream_of(StreamId id) {
  while (streams_.size() <= id.at()) streams_.push_back(c10::cuda::getStreamFromPool(/*isHighPriority=*/true, device_));
  return streams_[id.at()];
}

void CudaStreams::begin_phase(const StepProgram& program) {
  started_.clear();
  ended_.clear();
  for (std::size_t t = 0; t < program.tasks.size(); ++t) {
    started_.emplace_back(cudaEventDefault);
    ended_.emplace_back(cudaEventDefault);
  }
  stream_of_task_.assign(program.tasks.size(), {});
  c10::cuda::device_synchronize();
  phase_start_.emplace(cudaEventDefault);
  phase_start_->record(streams_.front());
}

void CudaStreams::begin_task(TaskId task, StreamId stream, std::span<const TaskId> waits_on) {
  const c10::cuda::CUDAStream on = stream_of(stream);
  c10::cuda::setCurrentCUDAStream(on);
  stream_of_task_[task.at()] = stream;
  for (const TaskId before : waits_on) {
    if (stream_of_task_[before.at()] != stream) ended_[before.at()].block(on);
  }
  started_[task.at()].record(on);
}

void CudaStreams::end_task(TaskId task) { ended_[task.at()].record(stream_of(stream_of_task_[task.at()])); }

std::vector<TaskInterval> CudaStreams::end_phase() {
  c10::cuda::device_synchronize();
  c10::cuda::setCurrentCUDAStream(streams_.front());
  std::vector<TaskInterval> times;
  for (std::size_t t = 0; t < started_.size(); ++t) {
    CHECK(stream_of_task_[t].is_set(), "every task of the phase ran");
    times.push_back({.start = between(*phase_start_, started_[t]), .end = between(*phase_start_, ended_[t])});
  }
  return times;
}

}  // namespace shardplan
