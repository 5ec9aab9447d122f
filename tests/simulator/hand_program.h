// Programs and machines by hand, in round numbers: 1 byte of memory traffic takes 1 ns, 1 byte on a link 1 ns, no launch, no
// latency.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/hardware_spec.h"
#include "core/step_program.h"

namespace shardplan {

inline HardwareSpec round_machine() {
  return {.id = "round",
          .usable_memory_bytes = 1'000'000,
          .memory_bytes_per_second = 1e9,
          .peak_flops_per_second = {{DType::F32, 1e9}, {DType::BF16, 2e9}},
          .matmul_fraction = 0.5,
          .kernel_launch_seconds = 0,
          .intra_node = {.name = "inside", .bytes_per_second = 1e9, .latency_seconds = 0},
          .inter_node = {.name = "across", .bytes_per_second = 0.5e9, .latency_seconds = 0},
          .host_link = {.name = "host", .bytes_per_second = 1e9, .latency_seconds = 0},
          .devices_per_node = 8};
}

// Streams 0 compute, 1 gather, 2 reduce; axes 0 shard (2 ranks inside a node), 1 replicate (2 nodes of 8).
inline StepProgram empty_program() {
  StepProgram program;
  program.role = "every rank";
  program.mesh = {{.name = "shard", .degree = 2, .stride = 1}, {.name = "replicate", .degree = 2, .stride = 8}};
  program.streams = {StreamKind::Compute, StreamKind::Gather, StreamKind::Reduce};
  return program;
}

inline TaskId add(StepProgram& program, Task task) {
  program.tasks.push_back(std::move(task));
  return TaskId(static_cast<std::int64_t>(program.tasks.size()) - 1);
}

// A kernel that takes `nanoseconds` on the round machine.
inline KernelWork kernel(std::int64_t nanoseconds) { return {.compute = ComputeClass::Elementwise, .read_bytes = nanoseconds}; }

inline TaskId compute(StepProgram& program, std::int64_t nanoseconds, std::vector<TaskId> waits_on = {}) {
  return add(program, {.kind = TaskKind::Forward,
                       .stream = StreamId(0),
                       .waits_on = std::move(waits_on),
                       .kernels = {kernel(nanoseconds)},
                       .label = "compute"});
}

// An all-gather over the two ranks of `axis`: half of the bytes pass the link. On the round machine `nanoseconds` inside a node.
inline TaskId gather(StepProgram& program, std::int64_t nanoseconds, std::vector<TaskId> waits_on = {}, int stream = 1,
                     int axis = 0) {
  return add(program,
             {.kind = TaskKind::Gather,
              .stream = StreamId(stream),
              .waits_on = std::move(waits_on),
              .collective = CollectiveWork{.kind = CollectiveKind::AllGather, .axis = AxisId(axis), .bytes = 2 * nanoseconds},
              .label = "gather"});
}

inline BufferId buffer(StepProgram& program, std::int64_t bytes, MemoryCategory category, Place place = Place::Device) {
  program.buffers.push_back({.bytes = bytes, .category = category, .place = place, .pool = StreamId(0), .label = "buffer"});
  return BufferId(static_cast<std::int64_t>(program.buffers.size()) - 1);
}

inline Effect allocate(BufferId id, std::int32_t at_kernel = 0) {
  return {.kind = EffectKind::Allocate, .buffer = id, .kernel = at_kernel};
}
inline Effect release(BufferId id, std::int32_t at_kernel = 0) {
  return {.kind = EffectKind::Free, .buffer = id, .kernel = at_kernel};
}

}  // namespace shardplan
