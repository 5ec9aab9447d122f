// How long a collective takes on links with latency and bandwidth: steps and bytes of the algorithm.
//
// Ring: all-gather and reduce-scatter of n bytes over p ranks take p-1 steps of n/p bytes; all-reduce takes both. Broadcast is a
// pipelined chain: n bytes plus p-1 latencies. A group that leaves its node moves at the speed of the slowest link on its ring: the
// links inside the node, or the network links of the group's g members in a node together. Leaves out: groups that are not aligned
// with nodes, trees, in-network reduction, message-size curves, protocols. Units: integer nanoseconds. Source: NCCL's and gloo's
// algorithm descriptions; simulator/README.md has the formulas.
#pragma once

#include <chrono>

#include "core/hardware_spec.h"
#include "core/step_program.h"

namespace shardplan {

// Which links a transfer occupies; transfers that share one share its bandwidth.
struct LinkUse {
  bool intra_node = false;
  bool inter_node = false;
  bool operator==(const LinkUse&) const = default;
};

struct CollectiveCost {
  std::chrono::nanoseconds latency{0};   // of all steps; moves nothing, shares nothing
  std::chrono::nanoseconds transfer{0};  // with the links to itself
  LinkUse links;
  [[nodiscard]] std::chrono::nanoseconds alone() const { return latency + transfer; }
};

// Nothing is moved, and the cost is 0, on an axis of one rank.
[[nodiscard]] CollectiveCost collective_cost(const CollectiveWork& work, const MeshAxis& axis, const HardwareSpec& hardware,
                                             std::int32_t ranks_per_node);

// The same, with the links to itself.
[[nodiscard]] std::chrono::nanoseconds collective_time(const CollectiveWork& work, const MeshAxis& axis,
                                                       const HardwareSpec& hardware, std::int32_t ranks_per_node);

}  // namespace shardplan
