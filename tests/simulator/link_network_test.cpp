#include "simulator/link_network.h"

#include <gtest/gtest.h>

#include "simulator/event_queue.h"

namespace shardplan {
namespace {

using std::chrono::nanoseconds;

constexpr LinkUse kInside{.intra_node = true, .inter_node = false};
constexpr LinkUse kAcross{.intra_node = false, .inter_node = true};
constexpr LinkUse kBoth{.intra_node = true, .inter_node = true};

// Completes everything that is active; the instants in the order of completion.
std::vector<std::pair<std::int32_t, std::int64_t>> drain(LinkNetwork& network) {
  std::vector<std::pair<std::int32_t, std::int64_t>> ends;
  while (const auto completion = network.next()) {
    ends.emplace_back(completion->task.value, completion->at.count());
    network.complete(*completion);
  }
  return ends;
}

using Ends = std::vector<std::pair<std::int32_t, std::int64_t>>;

TEST(LinkNetwork, ATransferAloneTakesItsOwnTime) {
  LinkNetwork network;
  network.begin(TaskId(0), nanoseconds(100), kInside, nanoseconds(5));
  EXPECT_EQ(drain(network), (Ends{{0, 105}}));
}

// 0 ==========----------    100 alone; half rate from 50 to its end: 50 + 2 * 50 = 150
// 1      ----------=====    100 alone; half rate from 50 to 150 does 50, the rest alone: 200
TEST(LinkNetwork, SharersMoveAtEqualPartsOfTheRate) {
  LinkNetwork network;
  network.begin(TaskId(0), nanoseconds(100), kInside, nanoseconds(0));
  network.begin(TaskId(1), nanoseconds(100), kInside, nanoseconds(50));
  EXPECT_EQ(drain(network), (Ends{{0, 150}, {1, 200}}));
}

TEST(LinkNetwork, OfEqualTransfersTheFirstToBeginCompletesFirst) {
  LinkNetwork network;
  for (std::int64_t i = 0; i < 3; ++i) network.begin(TaskId(2 - i), nanoseconds(10), kInside, nanoseconds(0));
  EXPECT_EQ(drain(network), (Ends{{2, 30}, {1, 30}, {0, 30}}));
}

TEST(LinkNetwork, OtherLinksAreNotShared) {
  LinkNetwork network;
  network.begin(TaskId(0), nanoseconds(100), kInside, nanoseconds(0));
  network.begin(TaskId(1), nanoseconds(100), kAcross, nanoseconds(0));
  EXPECT_EQ(drain(network), (Ends{{0, 100}, {1, 100}}));
}

// Task 0 needs both links and shares each with one other: half rate until 1 and 2 end at 200 (they too run at half), then alone.
TEST(LinkNetwork, ATransferOverTwoLinksMovesAtTheFullerOne) {
  LinkNetwork network;
  network.begin(TaskId(0), nanoseconds(150), kBoth, nanoseconds(0));
  network.begin(TaskId(1), nanoseconds(100), kInside, nanoseconds(0));
  network.begin(TaskId(2), nanoseconds(100), kAcross, nanoseconds(0));
  EXPECT_EQ(drain(network), (Ends{{1, 200}, {2, 200}, {0, 250}}));
}

// Thirds are exact: three sharers of 10 ns each end at 30, and not at 30 plus what rounding adds.
TEST(LinkNetwork, SharesOfUpToEightAreExact) {
  for (std::int64_t sharers = 1; sharers <= 8; ++sharers) {
    LinkNetwork network;
    for (std::int64_t i = 0; i < sharers; ++i) network.begin(TaskId(i), nanoseconds(7), kInside, nanoseconds(0));
    for (const auto& [task, end] : drain(network)) EXPECT_EQ(end, 7 * sharers);
  }
}

TEST(EventQueue, OrderIsTimeThenInsertion) {
  EventQueue<int> queue;
  queue.add(nanoseconds(5), 1);
  queue.add(nanoseconds(3), 2);
  queue.add(nanoseconds(5), 3);
  queue.add(nanoseconds(3), 4);
  std::vector<int> order;
  while (!queue.empty()) order.push_back(queue.take());
  EXPECT_EQ(order, (std::vector<int>{2, 4, 1, 3}));
}

}  // namespace
}  // namespace shardplan
