#include "simulator/collectives.h"

#include <algorithm>

#include "core/error.h"
#include "core/units.h"

namespace shardplan {
namespace {

// Steps of one latency each, and the fraction of the full buffer that passes each link.
struct Rounds {
  double steps;
  double fraction;
};

Rounds rounds_of(CollectiveKind kind, double p) {
  switch (kind) {
    case CollectiveKind::AllGather:
    case CollectiveKind::ReduceScatter:
      return {.steps = p - 1, .fraction = (p - 1) / p};
    case CollectiveKind::AllReduce:
      return {.steps = 2 * (p - 1), .fraction = 2 * (p - 1) / p};
    case CollectiveKind::Broadcast:
      return {.steps = p - 1, .fraction = 1};
  }
  CHECK(false, "a collective is one of the closed list");
}

struct Ring {
  double bytes_per_second;
  double latency_seconds;
  LinkUse links;
};

Ring ring_of(const MeshAxis& axis, const HardwareSpec& hardware, std::int32_t ranks_per_node) {
  const LinkSpec& inside = hardware.intra_node;
  const LinkSpec& across = hardware.inter_node;
  const std::int64_t span = std::int64_t{axis.degree} * axis.stride;
  if (span <= ranks_per_node) return {inside.bytes_per_second, inside.latency_seconds, {.intra_node = true}};
  // g members of the group in each node: g rings cross the network side by side, each over the link of another member.
  const std::int32_t members = std::max(1, ranks_per_node / axis.stride);
  const double network = members * across.bytes_per_second;
  if (members == 1) return {network, across.latency_seconds, {.inter_node = true}};
  return {std::min(inside.bytes_per_second, network),
          std::max(inside.latency_seconds, across.latency_seconds),
          {.intra_node = true, .inter_node = true}};
}

}  // namespace

CollectiveCost collective_cost(const CollectiveWork& work, const MeshAxis& axis, const HardwareSpec& hardware,
                               std::int32_t ranks_per_node) {
  CHECK(ranks_per_node >= 1, "a node holds at least one rank");
  if (axis.degree == 1) return {};
  const Rounds rounds = rounds_of(work.kind, axis.degree);
  const Ring ring = ring_of(axis, hardware, ranks_per_node);
  CHECK(ring.bytes_per_second > 0, "a link that is used has a bandwidth");
  return {.latency = nanoseconds_from_seconds(rounds.steps * ring.latency_seconds),
          .transfer = nanoseconds_from_seconds(rounds.fraction * static_cast<double>(work.bytes) / ring.bytes_per_second),
          .links = ring.links};
}

std::chrono::nanoseconds collective_time(const CollectiveWork& work, const MeshAxis& axis, const HardwareSpec& hardware,
                                         std::int32_t ranks_per_node) {
  return collective_cost(work, axis, hardware, ranks_per_node).alone();
}

}  // namespace shardplan
