// What is asked of the planner: model, machine, job, limits, objective, and the decisions that are already made.
//
// A knob that is given is fixed, a knob that is not given is searched.
// Units: bytes per device and per node.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "core/hardware_spec.h"
#include "core/workload_spec.h"
#include "planner/graph/model_spec.h"
#include "planner/search/knobs.h"

namespace shardplan {

enum class Objective : std::uint8_t {
  Throughput,  // most tokens per second that fits
  Memory,      // least memory on a device; then most tokens per second
};

struct FixedKnobs {
  std::optional<std::int32_t> shard_degree, replicate_degree;
  std::optional<UnitsWord> units;
  std::optional<RootWord> root;
  std::optional<ReshardWord> reshard;
  std::optional<RecomputeWord> recompute;
  std::optional<std::int64_t> micro_batch;
  std::optional<std::int32_t> grad_accum;
  std::optional<AccumSync> accum_sync;
  std::optional<std::int32_t> prefetch;
  std::optional<InitPath> init;
  bool operator==(const FixedKnobs&) const = default;
};

struct PlanRequest {
  ModelSpec model;
  HardwareSpec hardware;
  WorkloadSpec workload;
  std::int32_t gpus = 1;
  std::int32_t nodes = 1;
  std::optional<std::int64_t> memory_limit_bytes;       // per device
  std::optional<std::int64_t> host_memory_limit_bytes;  // per node
  Objective objective = Objective::Throughput;
  FixedKnobs knobs;

  // What a plan may use of a device: its usable memory, or less by --memory-limit.
  [[nodiscard]] std::int64_t capacity_bytes() const {
    return memory_limit_bytes ? std::min(*memory_limit_bytes, hardware.usable_memory_bytes) : hardware.usable_memory_bytes;
  }
  // 0 = not known.
  [[nodiscard]] std::int64_t host_capacity_bytes() const {
    const std::int64_t node = hardware.host_memory_bytes;
    if (!host_memory_limit_bytes) return node;
    return node == 0 ? *host_memory_limit_bytes : std::min(*host_memory_limit_bytes, node);
  }
  [[nodiscard]] std::int32_t ranks_per_node() const { return (gpus + nodes - 1) / nodes; }
};

}  // namespace shardplan
