// How long a collective takes on links with latency and bandwidth: steps and bytes of the algorithm.
//
// Ring: all-gather and reduce-scatter of n bytes over p ranks take p-1 steps of n/p bytes; all-reduce takes both. Broadcast is a pipelined
// chain: n bytes plus p-1 latencies. A group that leaves its node moves at the speed of the slowest link on its ring.
// Source: NCCL's and gloo's algorithm descriptions; simulator/README.md has the formulas.
#pragma once

#include <chrono>

#include "core/hardware_spec.h"
#include "core/step_program.h"

namespace shardplan {

[[nodiscard]] std::chrono::nanoseconds collective_time(const CollectiveWork& work, const MeshAxis& axis, const HardwareSpec& hardware,
                                                       std::int32_t ranks_per_node);

}  // namespace shardplan
