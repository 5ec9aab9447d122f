// Laws of the caching allocator over random scripts: whatever happened, the blocks tile the segments and the counters add up.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "simulator/caching_allocator.h"
#include "tests/simulator/allocator_script.h"

namespace shardplan {
namespace {

constexpr std::int64_t kMib = std::int64_t{1} << 20;

const char* const kConfs[] = {"",
                              "max_split_size_mb:24",
                              "expandable_segments:True",
                              "roundup_power2_divisions:[1:2,8:4,>:8]",
                              "garbage_collection_threshold:0.5,per_process_memory_fraction:0.6",
                              "large_segment_size_mb:12,expandable_segments:True"};

// The broken law in words; empty when all hold.
std::string broken_law(const CachingAllocator& allocator) {
  const AllocatorStats& stats = allocator.stats();
  std::int64_t requested = 0, allocated = 0, active = 0, split = 0, reserved = 0, end_of_last = 0;
  for (const SegmentView& segment : allocator.segments()) {
    if (segment.address < end_of_last) return "segments do not overlap";
    end_of_last = segment.address + segment.bytes;
    reserved += segment.bytes;
    std::int64_t at = segment.address;
    bool last_was_free = false;
    for (const BlockView& block : segment.blocks) {
      if (block.address != at) return "blocks follow each other without gaps";
      if (block.bytes <= 0 || block.bytes % 512 != 0) return "blocks are multiples of 512 bytes";
      if (block.requested_bytes > block.bytes) return "a block holds what was requested";
      at += block.bytes;
      const bool is_free = block.state == BlockState::Free;
      if (is_free && last_was_free) return "free neighbours are merged";
      last_was_free = is_free;
      requested += block.requested_bytes;
      if (block.state == BlockState::Allocated) allocated += block.bytes;
      if (!is_free) active += block.bytes;
      if (is_free && segment.blocks.size() > 1 && !segment.is_expandable) split += block.bytes;
    }
    if (at != end_of_last) return "blocks fill their segment";
  }
  if (requested != stats.requested.current_bytes) return "requested is the sum over blocks";
  if (allocated != stats.allocated.current_bytes) return "allocated is the sum over blocks in use";
  if (active != stats.active.current_bytes) return "active is the sum over blocks that are not free";
  if (split != stats.inactive_split.current_bytes) return "inactive split is the sum over free parts of split segments";
  if (reserved != stats.reserved.current_bytes) return "reserved is the sum over segments";
  if (!(reserved >= active && active >= allocated && active >= requested)) return "reserved >= active >= allocated, requested";
  for (const ByteCounter* counter : {&stats.requested, &stats.allocated, &stats.active, &stats.inactive_split, &stats.reserved})
    if (counter->peak_bytes < counter->current_bytes) return "a peak is not below its level";
  return "";
}

CachingAllocatorOptions options_of(const std::string& conf, std::int64_t device_bytes) {
  CachingAllocatorOptions options = allocator_options_from_text(conf);
  options.device_bytes = device_bytes;
  return options;
}

std::int64_t any_bytes(std::mt19937& random) {
  return 1 + static_cast<std::int64_t>(random() % (1U << (4 + random() % 23)));  // 16 B to 64 MiB, small ones as often as large
}

class AllocatorLaws : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Settings, AllocatorLaws, testing::ValuesIn(kConfs));

TEST_P(AllocatorLaws, BlocksTileSegmentsAndCountersAddUp) {
  for (std::uint32_t seed = 0; seed < 8; ++seed) {
    std::mt19937 random(seed);
    CachingAllocator allocator(options_of(GetParam(), 900 * kMib));
    std::vector<BlockId> live;
    for (int step = 0; step < 400; ++step) {
      if (random() % 100 == 0) {
        allocator.empty_cache();
      } else if (random() % 20 == 0) {
        allocator.reach(StreamId(static_cast<std::int64_t>(random() % 3)));
      } else if (!live.empty() && random() % 80 < live.size()) {
        const std::size_t which = random() % live.size();
        if (random() % 4 == 0) allocator.record_stream(live[which], StreamId(static_cast<std::int64_t>(random() % 3)));
        allocator.free(live[which]);
        live.erase(live.begin() + static_cast<std::ptrdiff_t>(which));
      } else {
        const AllocationResult result = allocator.allocate(any_bytes(random), StreamId(static_cast<std::int64_t>(random() % 3)));
        if (const BlockId* block = std::get_if<BlockId>(&result)) live.push_back(*block);
      }
      ASSERT_EQ(broken_law(allocator), "") << "seed " << seed << " step " << step;
    }
    for (const BlockId block : live) allocator.free(block);
    allocator.empty_cache();
    ASSERT_EQ(allocator.stats().reserved.current_bytes, 0) << "seed " << seed;
    ASSERT_EQ(allocator.stats().requested.current_bytes, 0);
    ASSERT_EQ(allocator.stats().inactive_split.current_bytes, 0);
    ASSERT_TRUE(allocator.segments().empty());
  }
}

// A second way to find the block: look at all of them. Default settings, an endless device.
TEST(AllocatorLawsOfDefaults, TheBlockTakenIsTheBestOfAll) {
  for (std::uint32_t seed = 0; seed < 12; ++seed) {
    std::mt19937 random(seed);
    CachingAllocator allocator;
    std::vector<BlockId> live;
    for (int step = 0; step < 500; ++step) {
      if (!live.empty() && random() % 80 < live.size()) {
        const std::size_t which = random() % live.size();
        allocator.free(live[which]);
        live.erase(live.begin() + static_cast<std::ptrdiff_t>(which));
        continue;
      }
      const std::int64_t bytes = any_bytes(random);
      const StreamId stream(static_cast<std::int64_t>(random() % 2));
      const std::int64_t wanted = (bytes + 511) / 512 * 512;
      const bool is_small = wanted <= kMib;
      std::pair<std::int64_t, std::int64_t> best{0, 0};  // size, address
      for (const SegmentView& segment : allocator.segments()) {
        if (segment.stream != stream || segment.is_small_pool != is_small) continue;
        for (const BlockView& block : segment.blocks) {
          if (block.state != BlockState::Free || block.bytes < wanted) continue;
          const std::pair<std::int64_t, std::int64_t> found{block.bytes, block.address};
          if (best.first == 0 || found < best) best = found;
        }
      }
      const std::int64_t reserved = allocator.stats().reserved.current_bytes;
      const BlockId block = std::get<BlockId>(allocator.allocate(bytes, stream));
      live.push_back(block);
      if (best.first == 0) {
        const std::int64_t segment = is_small             ? 2 * kMib
                                     : wanted < 10 * kMib ? 20 * kMib
                                                          : (wanted + 2 * kMib - 1) / (2 * kMib) * (2 * kMib);
        ASSERT_EQ(allocator.stats().reserved.current_bytes, reserved + segment);
        best.first = segment;
      } else {
        ASSERT_EQ(allocator.address(block), best.second) << "seed " << seed << " step " << step;
        ASSERT_EQ(allocator.stats().reserved.current_bytes, reserved);
      }
      const bool splits = is_small ? best.first > wanted : best.first - wanted > kMib;
      ASSERT_EQ(allocator.block_bytes(block), splits ? wanted : best.first);
    }
  }
}

TEST_P(AllocatorLaws, ACopyGoesOnAsTheOriginalDoes) {
  std::mt19937 random(5);
  CachingAllocator original(options_of(GetParam(), 900 * kMib));
  std::vector<BlockId> live;
  const auto go_on = [](CachingAllocator& allocator, std::vector<BlockId> blocks, std::mt19937 dice) {
    for (int step = 0; step < 300; ++step) {
      if (!blocks.empty() && dice() % 60 < blocks.size()) {
        allocator.free(blocks.back());
        blocks.pop_back();
        continue;
      }
      const AllocationResult result = allocator.allocate(any_bytes(dice), StreamId(static_cast<std::int64_t>(dice() % 2)));
      if (const BlockId* block = std::get_if<BlockId>(&result)) blocks.push_back(*block);
    }
    return std::pair(allocator.stats(), allocator.segments());
  };
  for (int i = 0; i < 40; ++i)
    live.push_back(std::get<BlockId>(original.allocate(any_bytes(random) % (8 * kMib) + 1, StreamId(0))));
  CachingAllocator copy = original;
  EXPECT_EQ(go_on(original, live, random), go_on(copy, live, random));
}

// Reserved memory is what the trace took from the device and did not give back; live blocks are its allocs without a free.
TEST_P(AllocatorLaws, TheTraceAddsUpToTheCounters) {
  CachingAllocator allocator(options_of(GetParam(), 600 * kMib));
  allocator.start_trace();
  std::mt19937 random(11);
  std::vector<BlockId> live;
  for (int step = 0; step < 600; ++step) {
    if (!live.empty() && random() % 80 < live.size()) {
      allocator.free(live.back());
      live.pop_back();
    } else {
      const AllocationResult result = allocator.allocate(any_bytes(random), StreamId(0));
      if (const BlockId* block = std::get_if<BlockId>(&result)) live.push_back(*block);
    }
  }
  std::int64_t reserved = 0, requested = 0, failures = 0;
  for (const AllocatorEvent& event : allocator.trace()) {
    switch (event.action) {
      case AllocatorAction::Alloc:
        requested += event.bytes;
        break;
      case AllocatorAction::FreeRequested:
        break;
      case AllocatorAction::FreeCompleted:
        requested -= event.bytes;
        break;
      case AllocatorAction::SegmentAlloc:
      case AllocatorAction::SegmentMap:
        reserved += event.bytes;
        break;
      case AllocatorAction::SegmentFree:
      case AllocatorAction::SegmentUnmap:
        reserved -= event.bytes;
        break;
      case AllocatorAction::OutOfMemory:
        ++failures;
        break;
    }
  }
  EXPECT_EQ(reserved, allocator.stats().reserved.current_bytes);
  EXPECT_EQ(requested, allocator.stats().requested.current_bytes);
  EXPECT_EQ(failures, allocator.stats().num_ooms);
}

}  // namespace
}  // namespace shardplan
