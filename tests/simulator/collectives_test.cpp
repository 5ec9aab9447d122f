#include "simulator/collectives.h"

#include <gtest/gtest.h>

#include "core/units.h"

namespace shardplan {
namespace {

constexpr double kInside = 100e9, kAcross = 10e9;               // bytes per second of one device
constexpr double kInsideLatency = 2e-6, kAcrossLatency = 5e-6;  // seconds per step
constexpr std::int64_t kBytes = 1'000'000'000;                  // n

HardwareSpec machine() {
  return {.intra_node = {.name = "inside", .bytes_per_second = kInside, .latency_seconds = kInsideLatency},
          .inter_node = {.name = "across", .bytes_per_second = kAcross, .latency_seconds = kAcrossLatency}};
}

std::chrono::nanoseconds time_of(CollectiveKind kind, std::int32_t degree, std::int32_t stride = 1,
                                 std::int32_t ranks_per_node = 8) {
  const MeshAxis axis{.name = "axis", .degree = degree, .stride = stride};
  return collective_time({.kind = kind, .axis = AxisId(0), .bytes = kBytes}, axis, machine(), ranks_per_node);
}

std::chrono::nanoseconds expected(double steps, double latency, double bytes_on_link, double rate) {
  return nanoseconds_from_seconds(steps * latency) + nanoseconds_from_seconds(bytes_on_link / rate);
}

TEST(Collectives, RingGatherTakesPMinusOneStepsOfOneStretch) {
  for (const std::int32_t p : {2, 3, 4, 8}) {
    const double stretch = static_cast<double>(kBytes) / p;
    const auto ring = expected(p - 1, kInsideLatency, (p - 1) * stretch, kInside);
    // The same sum in another order may round a nanosecond up.
    EXPECT_NEAR(static_cast<double>(time_of(CollectiveKind::AllGather, p).count()), static_cast<double>(ring.count()), 1) << p;
    EXPECT_EQ(time_of(CollectiveKind::ReduceScatter, p), time_of(CollectiveKind::AllGather, p)) << p;
  }
}

TEST(Collectives, AllReduceIsReduceScatterThenAllGather) {
  const auto both = time_of(CollectiveKind::ReduceScatter, 8) + time_of(CollectiveKind::AllGather, 8);
  EXPECT_NEAR(static_cast<double>(time_of(CollectiveKind::AllReduce, 8).count()), static_cast<double>(both.count()), 2);
}

TEST(Collectives, BroadcastMovesTheWholeBufferDownAChain) {
  EXPECT_EQ(time_of(CollectiveKind::Broadcast, 4), expected(3, kInsideLatency, kBytes, kInside));
}

TEST(Collectives, OneRankMovesNothing) {
  for (const CollectiveKind kind :
       {CollectiveKind::AllGather, CollectiveKind::ReduceScatter, CollectiveKind::AllReduce, CollectiveKind::Broadcast})
    EXPECT_EQ(time_of(kind, 1).count(), 0);
}

// 16 ranks, 8 in each node: 8 rings side by side, the network carries 8 * kAcross = 80 GB/s of the 100 GB/s inside.
TEST(Collectives, AGroupAcrossNodesMovesAtItsSlowestLink) {
  EXPECT_EQ(time_of(CollectiveKind::AllGather, 16), expected(15, kAcrossLatency, kBytes * 15.0 / 16, 8 * kAcross));
  // 16 in a node: 160 GB/s of network, the links inside are the slower ones; the slower latency stays.
  EXPECT_EQ(time_of(CollectiveKind::AllGather, 32, 1, 16), expected(31, kAcrossLatency, kBytes * 31.0 / 32, kInside));
}

// Ranks 0 and 8 of an axis with stride 8: one member in each node, its own network link only.
TEST(Collectives, AGroupWithOneMemberInEachNodeHasItsOwnLink) {
  EXPECT_EQ(time_of(CollectiveKind::AllReduce, 2, 8), expected(2, kAcrossLatency, kBytes, kAcross));
  const MeshAxis axis{.name = "replicate", .degree = 2, .stride = 8};
  EXPECT_EQ(collective_cost({.bytes = kBytes}, axis, machine(), 8).links, (LinkUse{.intra_node = false, .inter_node = true}));
}

// Degree 2, stride 4 in nodes of 8: ranks 0 and 4 share a node.
TEST(Collectives, AStrideInsideTheNodeStaysInside) {
  EXPECT_EQ(time_of(CollectiveKind::AllGather, 2, 4), time_of(CollectiveKind::AllGather, 2, 1));
  const MeshAxis axis{.name = "shard", .degree = 2, .stride = 4};
  EXPECT_EQ(collective_cost({.bytes = kBytes}, axis, machine(), 8).links, (LinkUse{.intra_node = true, .inter_node = false}));
}

}  // namespace
}  // namespace shardplan
