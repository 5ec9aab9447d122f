#include "simulator/cost_model.h"

#include <algorithm>

#include "core/error.h"
#include "core/units.h"
#include "simulator/collectives.h"

namespace shardplan {
namespace {

double peak_of(DType dtype, const HardwareSpec& hardware) {
  const auto& peaks = hardware.peak_flops_per_second;
  if (const auto own = peaks.find(dtype); own != peaks.end()) return own->second;
  if (const auto fp32 = peaks.find(DType::F32); fp32 != peaks.end()) return fp32->second;
  CHECK(!peaks.empty(), "a device has at least one peak");
  return std::min_element(peaks.begin(), peaks.end(), [](const auto& a, const auto& b) { return a.second < b.second; })->second;
}

double compute_seconds(const KernelWork& work, const HardwareSpec& hardware) {
  switch (work.compute) {
    case ComputeClass::Matmul:
    case ComputeClass::Attention:
      return static_cast<double>(work.flops) / (peak_of(work.dtype, hardware) * hardware.matmul_fraction);
    case ComputeClass::Elementwise:
    case ComputeClass::Reduction:
    case ComputeClass::Gather:
    case ComputeClass::Copy:
      return 0;
  }
  CHECK(false, "a compute class is one of the closed list");
}

}  // namespace

std::chrono::nanoseconds kernel_time(const KernelWork& work, const HardwareSpec& hardware) {
  CHECK(hardware.memory_bytes_per_second > 0, "device memory has a bandwidth");
  const double bytes_seconds = static_cast<double>(work.read_bytes + work.written_bytes) / hardware.memory_bytes_per_second;
  return nanoseconds_from_seconds(hardware.kernel_launch_seconds + std::max(compute_seconds(work, hardware), bytes_seconds));
}

std::chrono::nanoseconds task_time(const Task& task, const std::vector<MeshAxis>& mesh, const HardwareSpec& hardware,
                                   std::int32_t ranks_per_node) {
  std::chrono::nanoseconds sum{0};
  for (const KernelWork& work : task.kernels) sum += kernel_time(work, hardware);
  if (task.collective) sum += collective_time(*task.collective, mesh[task.collective->axis.at()], hardware, ranks_per_node);
  return sum;
}

}  // namespace shardplan
