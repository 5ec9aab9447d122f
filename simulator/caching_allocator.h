// PyTorch's caching device allocator as a value: blocks, segments and counters, without a device.
//
// Models rounding, the small and the large pool of each stream, best fit, splitting and merging, the split limit, blocks
// that wait for another stream, garbage collection, the release of cached memory before giving up, and growing (expandable)
// segments. Leaves out private pools of graph captures, pinned host memory and the driver's own granularity (every segment
// is a multiple of 2 MiB). Addresses rise and are never given out twice, so that runs are reproducible.
//
// Counters mean what torch.cuda.memory_stats means: requested is what tensors ask for, allocated whole blocks in use, active
// those and blocks that wait for another stream, inactive split free parts of partly used segments (not counted in growing
// segments), reserved all segments. A waiting block leaves `requested` together with `active`, not with `allocated`:
// reserved >= active >= allocated, active >= requested.
//
// Units: bytes. Errors: running out is a value; CHECK when a block is freed that is not in use.
// Source: c10/cuda/CUDACachingAllocator.cpp of PyTorch 2.11; equal to it event by event in
// tests/interop/allocator_against_pytorch_test.cpp.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include "core/ids.h"
#include "simulator/allocator_options.h"

namespace shardplan {

using BlockId = Index<struct BlockTag>;  // valid from allocate to free

struct ByteCounter {
  std::int64_t current_bytes = 0;
  std::int64_t peak_bytes = 0;
  bool operator==(const ByteCounter&) const = default;
};

struct AllocatorStats {
  ByteCounter requested;
  ByteCounter allocated;
  ByteCounter active;
  ByteCounter inactive_split;
  ByteCounter reserved;
  std::int64_t num_segments = 0;       // alive now; growing segments do not count
  std::int64_t num_alloc_retries = 0;  // all cached memory was given back before a segment could be had
  std::int64_t num_ooms = 0;
  std::int64_t num_device_allocs = 0;  // segments and pages taken from the device so far
  std::int64_t num_device_frees = 0;
  bool operator==(const AllocatorStats&) const = default;
};

struct OutOfMemory {
  std::int64_t requested_bytes = 0;
  std::int64_t segment_bytes = 0;   // what the device or the allowed fraction could not give
  std::int64_t reserved_bytes = 0;  // after everything cached was given back
  bool operator==(const OutOfMemory&) const = default;
};
using AllocationResult = std::variant<BlockId, OutOfMemory>;

enum class AllocatorAction : std::uint8_t {
  Alloc,
  FreeRequested,
  FreeCompleted,
  SegmentAlloc,
  SegmentFree,
  SegmentMap,
  SegmentUnmap,
  OutOfMemory,
};

struct AllocatorEvent {
  AllocatorAction action = AllocatorAction::Alloc;
  std::int64_t address = 0;  // OutOfMemory: bytes the device could still give
  std::int64_t bytes = 0;    // requested for Alloc and the frees, of the segment or page range else
  StreamId stream;
  bool operator==(const AllocatorEvent&) const = default;
};

enum class BlockState : std::uint8_t { Allocated, AwaitingFree, Free };

struct BlockView {
  BlockId block;
  std::int64_t address = 0;
  std::int64_t bytes = 0;
  std::int64_t requested_bytes = 0;  // 0 when free
  BlockState state = BlockState::Free;
  bool operator==(const BlockView&) const = default;
};

// A stretch of device memory: one segment, or one mapped stretch of a growing segment.
struct SegmentView {
  std::int64_t address = 0;
  std::int64_t bytes = 0;
  StreamId stream;
  bool is_small_pool = false;
  bool is_expandable = false;
  std::vector<BlockView> blocks;  // by address, without gaps
  bool operator==(const SegmentView&) const = default;
};

class CachingAllocator {
 public:
  explicit CachingAllocator(const CachingAllocatorOptions& options = {});

  // Requires bytes > 0 and a set stream.
  [[nodiscard]] AllocationResult allocate(std::int64_t bytes, StreamId stream);
  void free(BlockId block);

  // The block is in use on another stream too: freed, it waits until that stream reaches the point of the free.
  void record_stream(BlockId block, StreamId used_on);
  // Everything that waits for `stream` now has happened; the next allocate sees it.
  void reach(StreamId stream);

  // Gives back all free segments, after waiting for every stream.
  void empty_cache();

  [[nodiscard]] const AllocatorStats& stats() const { return stats_; }
  void reset_peaks();

  [[nodiscard]] std::int64_t address(BlockId block) const;
  [[nodiscard]] std::int64_t block_bytes(BlockId block) const;  // charged, at least what was requested
  [[nodiscard]] std::vector<SegmentView> segments() const;      // by address

  // Keeps every event from now on.
  void start_trace() { traces_ = true; }
  [[nodiscard]] const std::vector<AllocatorEvent>& trace() const { return trace_; }

  [[nodiscard]] const CachingAllocatorOptions& options() const { return options_; }

 private:
  using Slot = std::int32_t;  // position in blocks_
  static constexpr Slot kNone = -1;

  struct Block {
    std::int64_t address = 0;
    std::int64_t bytes = 0;
    std::int64_t requested_bytes = 0;
    std::int64_t freed_at_search = 0;  // of its size class, for the age that garbage collection sees
    Slot before = kNone;               // neighbours in the segment
    Slot after = kNone;
    std::int32_t pool = 0;
    std::int32_t num_waits = 0;  // streams that must reach the point of the free
    bool allocated = false;
    bool mapped = true;
    bool expandable = false;
    bool used_elsewhere = false;  // has an entry in other_streams_
  };
  struct FreeKey {  // best fit: smallest, then lowest
    std::int64_t bytes = 0;
    std::int64_t address = 0;
    Slot slot = kNone;
    auto operator<=>(const FreeKey&) const = default;  // NOLINT(modernize-use-nullptr): the check misreads <=>
  };
  struct Pool {  // of one stream and size class
    StreamId stream;
    bool is_small = false;
    std::vector<FreeKey> free;      // ascending
    std::vector<FreeKey> unmapped;  // ascending by address (bytes are 0)
  };
  struct Request {
    std::int64_t requested_bytes = 0;
    std::int64_t bytes = 0;          // rounded
    std::int64_t segment_bytes = 0;  // taken from the device if no block fits
    std::int32_t pool = 0;
  };
  struct Wait {
    Slot slot = kNone;
    bool reached = false;
  };

  [[nodiscard]] Block& at(Slot slot) { return blocks_[static_cast<std::size_t>(slot)]; }
  [[nodiscard]] const Block& at(Slot slot) const { return blocks_[static_cast<std::size_t>(slot)]; }
  [[nodiscard]] Pool& pool_at(std::int32_t pool) { return pools_[static_cast<std::size_t>(pool)]; }
  [[nodiscard]] const Pool& pool_at(std::int32_t pool) const { return pools_[static_cast<std::size_t>(pool)]; }

  [[nodiscard]] std::int64_t rounded(std::int64_t bytes) const;
  [[nodiscard]] std::int64_t segment_bytes_for(std::int64_t bytes) const;
  [[nodiscard]] std::int32_t pool_of(StreamId stream, bool is_small);
  [[nodiscard]] bool is_split(const Block& block) const { return block.before != kNone || block.after != kNone; }
  [[nodiscard]] bool should_split(const Block& block, const Request& request) const;
  [[nodiscard]] bool exceeds_split_limit(std::int64_t bytes) const;

  Slot new_block(Block block);
  void drop_block(Slot slot);
  void link(Slot slot, Slot before, Slot after);
  void insert_free(Slot slot);
  void erase_free(Slot slot);
  std::int64_t absorb(Slot slot, Slot neighbour);

  [[nodiscard]] Slot take_free_block(const Request& request);
  [[nodiscard]] BlockId hand_out(Slot slot, const Request& request);
  void complete_free(Slot slot);
  void poll_waits();
  void wait_for_all();

  // Memory of the device: caching_allocator_segments.cpp.
  [[nodiscard]] bool may_take(std::int64_t bytes) const;
  [[nodiscard]] Slot take_segment(const Request& request);
  [[nodiscard]] bool release_oversize(const Request& request);
  void release_cached();
  void release_pool(std::int32_t pool);
  void release_segment(Slot slot);
  void collect_garbage();
  [[nodiscard]] Slot take_expandable(const Request& request);
  [[nodiscard]] Slot find_expandable(const Request& request);
  [[nodiscard]] std::int64_t page_bytes(std::int32_t pool) const;
  [[nodiscard]] std::int64_t size_when_grown(Slot slot) const;
  bool map(Slot slot, std::int64_t bytes);
  void unmap(Slot slot);
  void insert_unmapped(Slot slot);
  void erase_unmapped(Slot slot);

  void note(AllocatorAction action, std::int64_t address, std::int64_t bytes, StreamId stream);

  CachingAllocatorOptions options_;
  AllocatorStats stats_;
  std::vector<Block> blocks_;
  std::vector<Slot> unused_slots_;
  std::vector<Pool> pools_;
  std::map<std::pair<bool, StreamId>, std::int32_t> pool_by_kind_;  // (is small, stream): all large pools come first
  std::map<Slot, std::set<StreamId>> other_streams_;                // of blocks in use on several
  std::map<StreamId, std::vector<Wait>> waits_;                     // in the order of the frees
  std::array<std::int64_t, 2> searches_{};                          // large, small: counted while garbage collection is on
  std::int64_t next_address_;
  bool traces_ = false;
  std::vector<AllocatorEvent> trace_;
};

}  // namespace shardplan
