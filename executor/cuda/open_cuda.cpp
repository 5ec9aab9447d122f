#include <c10/util/Logging.h>  // before core/error.h, whose CHECK replaces the one here

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <fmt/format.h>

#include <exception>

#include "executor/cuda/cuda_part.h"
#include "executor/cuda/cuda_streams.h"
#include "executor/cuda/nccl_collectives.h"

namespace shardplan {
namespace {

constexpr auto kAll = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);

// Requested bytes as the caching allocator counts them; it knows no categories.
class CudaMeter final : public MemoryMeter {
 public:
  explicit CudaMeter(c10::DeviceIndex device) : device_(device) {}
  [[nodiscard]] MemoryReading read() const override {
    const auto stats = c10::cuda::CUDACachingAllocator::getDeviceStats(device_);
    MemoryReading reading;
    reading.current_bytes = stats.requested_bytes[kAll].current;
    reading.peak_bytes = stats.requested_bytes[kAll].peak;
    return reading;
  }
  void restart_peak() override { c10::cuda::CUDACachingAllocator::resetPeakStats(device_); }

 private:
  c10::DeviceIndex device_;
};

}  // namespace

extern "C" __attribute__((visibility("default"))) bool shardplan_open_cuda(RankWorld::Held& held, const RankPlace& place,
                                                                           const std::vector<MeshAxis>& mesh,
                                                                           DeviceMachine& machine, std::string& problem) {
  try {
    const int devices = c10::cuda::device_count();
    if (place.local_rank >= devices) {
      problem = fmt::format("local rank {} needs a CUDA device of its own, {} are here", place.local_rank, devices);
      return false;
    }
    const auto device = static_cast<c10::DeviceIndex>(place.local_rank);
    c10::cuda::set_device(device);
    c10::cuda::CUDACachingAllocator::init(devices);
    machine.device = at::Device(at::kCUDA, device);
    machine.collectives = nccl_collectives(held, place, mesh, device);
    machine.streams = std::make_unique<CudaStreams>(device);
    machine.memory = std::make_unique<CudaMeter>(device);
    return true;
  } catch (const std::exception& e) {
    problem = fmt::format("CUDA cannot be used: {}", std::string(e.what()).substr(0, std::string(e.what()).find('\n')));
    return false;
  }
}

static_assert(std::is_same_v<decltype(&shardplan_open_cuda), OpenCudaPart>);

}  // namespace shardplan
