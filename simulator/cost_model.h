// How long one kernel takes: the roofline of its flops and bytes, plus a launch.
//
// time = launch + max(flops / (peak(dtype) * fraction), bytes / memory bandwidth). Matrix products reach `matmul_fraction` of the peak; other
// kernels are limited by bytes. Leaves out: shape effects (tile and wave quantisation), clocks, cache.
// The search uses these very functions: there is one cost model.
#pragma once

#include <chrono>

#include "core/hardware_spec.h"
#include "core/step_program.h"

namespace shardplan {

[[nodiscard]] std::chrono::nanoseconds kernel_time(const KernelWork& work, const HardwareSpec& hardware);
// Sum over the task's kernels, or the time of its collective.
[[nodiscard]] std::chrono::nanoseconds task_time(const Task& task, const std::vector<MeshAxis>& mesh, const HardwareSpec& hardware,
                                                 std::int32_t ranks_per_node);

}  // namespace shardplan
