// Examples worked out by hand from the rules of the allocator; the laws for random scripts are in allocator_laws_test.cpp,
// PyTorch's own answers in recorded_allocator_test.cpp.
#include "simulator/caching_allocator.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace shardplan {
namespace {

constexpr std::int64_t kKib = 1024;
constexpr std::int64_t kMib = 1024 * kKib;
const StreamId kCompute(0);
const StreamId kGather(1);

BlockId block_of(const AllocationResult& result) { return std::get<BlockId>(result); }
BlockId allocate(CachingAllocator& allocator, std::int64_t bytes, StreamId stream = kCompute) {
  return block_of(allocator.allocate(bytes, stream));
}

struct Levels {
  std::int64_t requested, allocated, active, inactive_split, reserved;
  bool operator==(const Levels&) const = default;
};
void PrintTo(const Levels& levels, std::ostream* out) {
  *out << "requested " << levels.requested << ", allocated " << levels.allocated << ", active " << levels.active
       << ", inactive split " << levels.inactive_split << ", reserved " << levels.reserved;
}
Levels levels(const CachingAllocator& allocator) {
  const AllocatorStats& stats = allocator.stats();
  return {stats.requested.current_bytes, stats.allocated.current_bytes, stats.active.current_bytes,
          stats.inactive_split.current_bytes, stats.reserved.current_bytes};
}

TEST(CachingAllocator, EveryRequestIsChargedInStepsOf512Bytes) {
  for (const auto& [requested, charged] : {std::pair{1, 512}, {511, 512}, {512, 512}, {513, 1024}, {1000, 1024}}) {
    CachingAllocator allocator;
    EXPECT_EQ(allocator.block_bytes(allocate(allocator, requested)), charged) << requested;
    EXPECT_EQ(levels(allocator), (Levels{requested, charged, charged, 2 * kMib - charged, 2 * kMib}));
  }
}

// Request r, rounded to q = 512 * ceil(r / 512).   q <= 1 MiB: segment 2 MiB.   1 MiB < q < 10 MiB: 20 MiB.   q >= 10 MiB: next 2
// MiB.
TEST(CachingAllocator, SegmentFollowsTheRoundedRequest) {
  const std::pair<std::int64_t, std::int64_t> cases[] = {
      {1, 2 * kMib},
      {kMib, 2 * kMib},
      {kMib + 1, 20 * kMib},
      {10 * kMib - 512, 20 * kMib},
      {10 * kMib - 511, 10 * kMib},  // rounds up to 10 MiB
      {10 * kMib, 10 * kMib},
      {10 * kMib + 1, 12 * kMib},
      {33 * kMib, 34 * kMib},
  };
  for (const auto& [requested, segment] : cases) {
    CachingAllocator allocator;
    allocate(allocator, requested);
    EXPECT_EQ(allocator.stats().reserved.current_bytes, segment) << requested;
    EXPECT_EQ(allocator.stats().num_segments, 1);
  }
}

// The large pool splits when more than 1 MiB is left, the small pool from 512 bytes on.
TEST(CachingAllocator, ALargeBlockKeepsAtMostOneMebibyteTooMuch) {
  CachingAllocator keeps;
  EXPECT_EQ(keeps.block_bytes(allocate(keeps, 11 * kMib)), 12 * kMib) << "12 - 11 MiB left: not more than 1 MiB";
  EXPECT_EQ(levels(keeps), (Levels{11 * kMib, 12 * kMib, 12 * kMib, 0, 12 * kMib}));

  CachingAllocator splits;
  EXPECT_EQ(splits.block_bytes(allocate(splits, 11 * kMib - 512)), 11 * kMib - 512) << "1 MiB + 512 B left";
  EXPECT_EQ(levels(splits), (Levels{11 * kMib - 512, 11 * kMib - 512, 11 * kMib - 512, kMib + 512, 12 * kMib}));

  CachingAllocator small;
  for (int i = 0; i < 4096; ++i) allocate(small, 512);
  EXPECT_EQ(levels(small), (Levels{2 * kMib, 2 * kMib, 2 * kMib, 0, 2 * kMib})) << "4096 blocks of 512 B fill one segment";
}

// Segments   A |............30............|   B |.......24.......|   C |......22.....|      all free
// Request 21: all three fit; B and C leave 3 and 1 MiB, A leaves 9. Smallest that fits: C, unsplit.
// Request 21 again: B, split at 21 because 3 MiB > 1 MiB are left.
TEST(CachingAllocator, TheSmallestFreeBlockThatFitsIsTaken) {
  CachingAllocator allocator;
  const BlockId a = allocate(allocator, 30 * kMib);
  const BlockId b = allocate(allocator, 24 * kMib);
  const BlockId c = allocate(allocator, 22 * kMib);
  const std::int64_t at_b = allocator.address(b);
  const std::int64_t at_c = allocator.address(c);
  for (const BlockId block : {a, b, c}) allocator.free(block);
  const BlockId first = allocate(allocator, 21 * kMib);
  EXPECT_EQ(allocator.address(first), at_c);
  EXPECT_EQ(allocator.block_bytes(first), 22 * kMib);
  const BlockId second = allocate(allocator, 21 * kMib);
  EXPECT_EQ(allocator.address(second), at_b);
  EXPECT_EQ(allocator.block_bytes(second), 21 * kMib);
  EXPECT_EQ(levels(allocator), (Levels{42 * kMib, 43 * kMib, 43 * kMib, 3 * kMib, 76 * kMib}));
}

TEST(CachingAllocator, OfEqualBlocksTheLowestIsTaken) {
  CachingAllocator allocator;
  const BlockId low = allocate(allocator, 30 * kMib);
  const BlockId high = allocate(allocator, 30 * kMib);
  const std::int64_t at_low = allocator.address(low);
  allocator.free(high);
  allocator.free(low);
  EXPECT_EQ(allocator.address(allocate(allocator, 30 * kMib)), at_low);
}

TEST(CachingAllocator, StreamsShareNothing) {
  CachingAllocator allocator;
  allocator.free(allocate(allocator, 30 * kMib, kGather));
  allocate(allocator, 30 * kMib, kCompute);
  EXPECT_EQ(allocator.stats().reserved.current_bytes, 60 * kMib);
  allocate(allocator, 30 * kMib, kGather);
  EXPECT_EQ(allocator.stats().reserved.current_bytes, 60 * kMib) << "its own stream's block is reused";
}

// Segment of 20 MiB |  a 5  |  b 5  |  c 5  |  rest 5  |. Free a and c: c merges with the rest. Free b: all is one block again.
TEST(CachingAllocator, FreeNeighboursMerge) {
  CachingAllocator allocator;
  const BlockId a = allocate(allocator, 5 * kMib);
  const BlockId b = allocate(allocator, 5 * kMib);
  const BlockId c = allocate(allocator, 5 * kMib);
  EXPECT_EQ(allocator.segments().at(0).blocks.size(), 4U);
  allocator.free(a);
  EXPECT_EQ(allocator.segments().at(0).blocks.size(), 4U);
  allocator.free(c);
  EXPECT_EQ(allocator.segments().at(0).blocks.size(), 3U);
  EXPECT_EQ(levels(allocator), (Levels{5 * kMib, 5 * kMib, 5 * kMib, 15 * kMib, 20 * kMib}));
  allocator.free(b);
  EXPECT_EQ(allocator.segments().at(0).blocks.size(), 1U);
  EXPECT_EQ(levels(allocator), (Levels{0, 0, 0, 0, 20 * kMib})) << "a whole free segment is not an inactive split";
}

// freed: |allocated| -> |waits| at free, -> |free| at the first allocate after the other stream got there.
TEST(CachingAllocator, ABlockUsedOnAnotherStreamWaitsForIt) {
  CachingAllocator allocator;
  const BlockId block = allocate(allocator, 30 * kMib, kCompute);
  allocator.record_stream(block, kGather);
  allocator.free(block);
  EXPECT_EQ(levels(allocator), (Levels{30 * kMib, 0, 30 * kMib, 0, 30 * kMib}));
  EXPECT_EQ(allocator.segments().at(0).blocks.at(0).state, BlockState::AwaitingFree);
  allocate(allocator, 30 * kMib, kCompute);
  EXPECT_EQ(levels(allocator), (Levels{60 * kMib, 30 * kMib, 60 * kMib, 0, 60 * kMib})) << "not reused while it waits";
  allocator.reach(kGather);
  EXPECT_EQ(levels(allocator).active, 60 * kMib) << "nobody has looked yet";
  allocate(allocator, 30 * kMib, kCompute);
  EXPECT_EQ(levels(allocator), (Levels{60 * kMib, 60 * kMib, 60 * kMib, 0, 60 * kMib}));
}

TEST(CachingAllocator, UseOnTheOwnStreamNeedsNoWait) {
  CachingAllocator allocator;
  const BlockId block = allocate(allocator, 30 * kMib, kCompute);
  allocator.record_stream(block, kCompute);
  allocator.free(block);
  EXPECT_EQ(levels(allocator), (Levels{0, 0, 0, 0, 30 * kMib}));
}

// Device 100 MiB. Cached 60 MiB cannot serve 80; 60 + 80 > 100: the cache is given back, then 80 fit.
TEST(CachingAllocator, CachedSegmentsAreGivenBackBeforeGivingUp) {
  CachingAllocator allocator({.device_bytes = 100 * kMib});
  allocator.free(allocate(allocator, 60 * kMib));
  allocate(allocator, 80 * kMib);
  EXPECT_EQ(levels(allocator), (Levels{80 * kMib, 80 * kMib, 80 * kMib, 0, 80 * kMib}));
  EXPECT_EQ(allocator.stats().num_alloc_retries, 1);
  EXPECT_EQ(allocator.stats().num_ooms, 0);
  EXPECT_EQ(allocator.stats().reserved.peak_bytes, 80 * kMib) << "60 were gone before 80 came";
}

// A split segment cannot be given back: 1 of 30 MiB is in use, so 29 MiB are lost to a request of 80 on a device of 100.
TEST(CachingAllocator, RunningOutIsAValueAndChangesNothing) {
  CachingAllocator allocator({.device_bytes = 100 * kMib});
  const BlockId whole = allocate(allocator, 30 * kMib);
  allocator.free(whole);
  const BlockId pin = allocate(allocator, 2 * kMib);
  const Levels before = levels(allocator);
  EXPECT_EQ(before, (Levels{2 * kMib, 2 * kMib, 2 * kMib, 28 * kMib, 30 * kMib}));
  const AllocationResult result = allocator.allocate(80 * kMib, kCompute);
  ASSERT_TRUE(std::holds_alternative<OutOfMemory>(result));
  EXPECT_EQ(std::get<OutOfMemory>(result), (OutOfMemory{80 * kMib, 80 * kMib, 30 * kMib}));
  EXPECT_EQ(levels(allocator), before);
  EXPECT_EQ(allocator.stats().num_ooms, 1);
  allocator.free(pin);
  EXPECT_TRUE(std::holds_alternative<BlockId>(allocator.allocate(80 * kMib, kCompute)));
}

TEST(CachingAllocator, MemoryOfOthersCountsAgainstTheDevice) {
  CachingAllocator allocator({.device_bytes = 100 * kMib, .outside_bytes = 21 * kMib});
  EXPECT_TRUE(std::holds_alternative<OutOfMemory>(allocator.allocate(80 * kMib, kCompute)));
  EXPECT_TRUE(std::holds_alternative<BlockId>(allocator.allocate(78 * kMib, kCompute)));
}

// Limit 32 MiB, a free block of 64. Below the limit: not touched. Above: taken whole if less than 20 MiB are wasted.
TEST(CachingAllocator, BlocksAboveTheSplitLimitStayWhole) {
  CachingAllocator allocator({.max_split_size_bytes = 32 * kMib});
  allocator.free(allocate(allocator, 64 * kMib));
  allocate(allocator, 21 * kMib);
  EXPECT_EQ(allocator.stats().reserved.current_bytes, (64 + 22) * kMib) << "21 < 32 does not take a block of 64";
  const BlockId forty_four = allocate(allocator, 44 * kMib);
  EXPECT_EQ(allocator.stats().reserved.current_bytes, (64 + 22 + 44) * kMib) << "64 is not below 44 + 20";
  allocator.free(forty_four);
  const BlockId forty_six = allocate(allocator, 46 * kMib);
  EXPECT_EQ(allocator.block_bytes(forty_six), 64 * kMib) << "64 < 46 + 20: taken, and charged whole";
}

// What may be wasted follows the segment size unless it is set: a block of 84 serves 45 when 40 may be wasted, not when 20 may.
TEST(CachingAllocator, WasteAboveTheSplitLimitFollowsTheSegmentSize) {
  for (const bool is_set : {false, true}) {
    CachingAllocatorOptions options{.max_split_size_bytes = 40 * kMib, .large_segment_bytes = 40 * kMib};
    if (is_set) options.max_non_split_rounding_bytes = 20 * kMib;
    CachingAllocator allocator(options);
    allocator.free(allocate(allocator, 84 * kMib));
    allocate(allocator, 45 * kMib);
    EXPECT_EQ(allocator.stats().reserved.current_bytes, (is_set ? 84 + 46 : 84) * kMib);
  }
}

// Limit 32 MiB, device 200. Cached and whole: 60, 50, 40 and 20 MiB, together 170. A request of 70 finds none, and 170 + 70 > 200.
// No block alone holds 70: the largest go first, 60, then 50. 20 is below the limit and stays, so does 40: 60 + 70 are reserved.
TEST(CachingAllocator, WithASplitLimitTheLargestCachedBlocksGoFirst) {
  CachingAllocator allocator({.max_split_size_bytes = 32 * kMib, .device_bytes = 200 * kMib});
  std::vector<BlockId> cached;
  for (const std::int64_t mib : {60, 50, 40, 20}) cached.push_back(allocate(allocator, mib * kMib));
  for (const BlockId block : cached) allocator.free(block);
  allocate(allocator, 70 * kMib);
  EXPECT_EQ(levels(allocator), (Levels{70 * kMib, 70 * kMib, 70 * kMib, 0, 130 * kMib}));
  EXPECT_EQ(allocator.stats().num_alloc_retries, 0);
  EXPECT_EQ(allocator.stats().num_device_frees, 2);
}

// Limit 32 MiB, device 120. Cached: 90 and 20. A request of 45 may not use 90 (90 >= 45 + 20), and 110 + 46 > 120: 90 alone makes
// room.
TEST(CachingAllocator, WithASplitLimitOneLargeEnoughBlockMakesRoom) {
  CachingAllocator allocator({.max_split_size_bytes = 32 * kMib, .device_bytes = 120 * kMib});
  const BlockId large = allocate(allocator, 90 * kMib);
  const BlockId small = allocate(allocator, 20 * kMib);
  allocator.free(large);
  allocator.free(small);
  allocate(allocator, 45 * kMib);
  EXPECT_EQ(allocator.stats().reserved.current_bytes, (20 + 46) * kMib);
  EXPECT_EQ(allocator.stats().num_alloc_retries, 0);
}

// Divisions 4: between 4 and 8 MiB sizes go in steps of 1 MiB, between 512 KiB and 1 MiB in steps of 128 KiB.
TEST(CachingAllocator, RoundingToFractionsOfAPowerOfTwo) {
  CachingAllocatorOptions options;
  options.roundup_power2_divisions.fill(4);
  CachingAllocator allocator(options);
  EXPECT_EQ(allocator.block_bytes(allocate(allocator, 5 * kMib + 1)), 6 * kMib);
  EXPECT_EQ(allocator.block_bytes(allocate(allocator, 4 * kMib)), 4 * kMib);
  EXPECT_EQ(allocator.block_bytes(allocate(allocator, 600 * kKib)), 640 * kKib);
  EXPECT_EQ(allocator.block_bytes(allocate(allocator, 2048)), 2048) << "not above 512 * 4: ordinary rounding";
  EXPECT_EQ(allocator.block_bytes(allocate(allocator, 2049)), 2560) << "2048 + 2048 / 4";
}

// One range, pages of 20 MiB:   30 -> |p1|p2|        free, then 50 -> |p1|p2|p3|     a block of fixed segments would need 30 + 50.
TEST(CachingAllocator, AnExpandableSegmentGrowsInPlace) {
  CachingAllocator grows({.expandable_segments = true});
  const BlockId first = allocate(grows, 30 * kMib);
  EXPECT_EQ(grows.stats().reserved.current_bytes, 40 * kMib);
  const std::int64_t at_first = grows.address(first);
  grows.free(first);
  const BlockId second = allocate(grows, 50 * kMib);
  EXPECT_EQ(grows.stats().reserved.current_bytes, 60 * kMib);
  EXPECT_EQ(grows.address(second), at_first);
  EXPECT_EQ(grows.stats().num_segments, 0) << "counts segments of fixed size";

  CachingAllocator fixed;
  fixed.free(allocate(fixed, 30 * kMib));
  allocate(fixed, 50 * kMib);
  EXPECT_EQ(fixed.stats().reserved.current_bytes, 80 * kMib);
}

// |  a 25  |  b 25  | 10 |  over pages of 20 MiB. With a free, the one page that lies wholly in it can go; b keeps the others.
TEST(CachingAllocator, OnlyPagesWhollyFreeAreUnmapped) {
  CachingAllocator allocator({.expandable_segments = true});
  const BlockId a = allocate(allocator, 25 * kMib);
  const BlockId b = allocate(allocator, 25 * kMib);
  EXPECT_EQ(allocator.stats().reserved.current_bytes, 60 * kMib);
  allocator.free(a);
  allocator.empty_cache();
  EXPECT_EQ(allocator.stats().reserved.current_bytes, 40 * kMib);
  const std::int64_t at_b = allocator.address(b);
  allocator.free(b);
  allocator.empty_cache();
  EXPECT_EQ(allocator.stats().reserved.current_bytes, 0);
  EXPECT_TRUE(allocator.segments().empty());
  EXPECT_GT(allocator.address(allocate(allocator, 25 * kMib)), at_b) << "the address range went with its last page";
}

// Allowed 0.5 * 404 = 202 MiB, threshold 0.8 * 202 = 161.6. Searches of the large pools so far, and what each left:
//   1: old 60   2: young 80   old is freed   3: kept 30   young is freed   4: 90, which nothing cached can serve
// Reserved, with 2 cached in the small pool, is 172 > 161.6: 10.4 MiB must go. Ages are 4 - 2 = 2 and 4 - 3 = 1 searches, 1.5 on
// average: old goes, young stays, small pools are left alone, and 112 + 90 = 202 are allowed.
TEST(CachingAllocator, GarbageCollectionGivesBackWhatWasUnusedLongest) {
  CachingAllocator allocator({.garbage_collection_threshold_fraction = 0.8, .memory_fraction = 0.5, .device_bytes = 404 * kMib});
  allocator.free(allocate(allocator, 1000));
  const BlockId old = allocate(allocator, 60 * kMib);
  const BlockId young = allocate(allocator, 80 * kMib);
  const std::int64_t at_young = allocator.address(young);
  allocator.free(old);
  allocate(allocator, 30 * kMib, kGather);
  allocator.free(young);
  allocate(allocator, 90 * kMib);
  EXPECT_EQ(levels(allocator), (Levels{120 * kMib, 120 * kMib, 120 * kMib, 0, 202 * kMib}));
  EXPECT_EQ(allocator.stats().num_alloc_retries, 0);
  EXPECT_EQ(allocator.address(allocate(allocator, 80 * kMib)), at_young);
}

TEST(CachingAllocator, ResettingPeaksStartsFromTheCurrentLevels) {
  CachingAllocator allocator;
  allocator.free(allocate(allocator, 30 * kMib));
  allocate(allocator, 1000);
  EXPECT_EQ(allocator.stats().allocated.peak_bytes, 30 * kMib);
  allocator.reset_peaks();
  EXPECT_EQ(allocator.stats().allocated.peak_bytes, 1024);
  EXPECT_EQ(allocator.stats().requested.peak_bytes, 1000);
  EXPECT_EQ(allocator.stats().reserved.peak_bytes, 32 * kMib);
}

TEST(CachingAllocator, FreeingTwiceIsOurBug) {
  CachingAllocator allocator;
  const BlockId block = allocate(allocator, 30 * kMib);
  allocator.free(block);
  EXPECT_THROW(allocator.free(block), CheckFailure);
  EXPECT_THROW(static_cast<void>(allocator.allocate(0, kCompute)), CheckFailure);
}

}  // namespace
}  // namespace shardplan
