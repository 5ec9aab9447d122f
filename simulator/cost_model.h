// How long one kernel takes: the roofline of its flops and bytes, plus a launch.
//
// time = launch + max(flops / (peak(dtype) * fraction), bytes / memory bandwidth). Matrix products and attention reach
// `matmul_fraction` of the peak; other kernels are limited by bytes. Where a dtype has no peak in the hardware file (bf16 on
// devices without it), that of fp32 counts, else the lowest known. Leaves out: shape effects (tile and wave quantisation), clocks,
// cache. The search uses these very functions: there is one cost model.
#pragma once

#include <chrono>
#include <vector>

#include "core/hardware_spec.h"
#include "core/step_program.h"

namespace shardplan {

[[nodiscard]] std::chrono::nanoseconds kernel_time(const KernelWork& work, const HardwareSpec& hardware);
// Sum over the task's kernels, plus its collective with the links to itself.
[[nodiscard]] std::chrono::nanoseconds task_time(const Task& task, const std::vector<MeshAxis>& mesh, const HardwareSpec& hardware,
                                                 std::int32_t ranks_per_node);

}  // namespace shardplan
