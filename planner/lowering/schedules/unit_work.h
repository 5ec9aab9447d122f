// Small pieces that the parts of the shardplan schedule share: kernels by what they read and write, keys of unit buffers.
#pragma once

#include <cstdint>

#include "planner/lowering/task_sink.h"

namespace shardplan {

[[nodiscard]] inline KernelWork copy_work(DType dtype, std::int64_t read_bytes, std::int64_t written_bytes) {
  return {.compute = ComputeClass::Copy, .dtype = dtype, .read_bytes = read_bytes, .written_bytes = written_bytes};
}

[[nodiscard]] inline KernelWork pointwise_work(DType dtype, std::int64_t flops, std::int64_t read_bytes,
                                               std::int64_t written_bytes) {
  return {.compute = ComputeClass::Elementwise,
          .dtype = dtype,
          .flops = flops,
          .read_bytes = read_bytes,
          .written_bytes = written_bytes};
}

[[nodiscard]] inline BufferKey unit_buffer(BufferUse use, UnitId unit, std::int32_t group = -1, std::int32_t instance = 0) {
  return {.use = use, .unit = unit, .group = group, .instance = instance};
}

}  // namespace shardplan
