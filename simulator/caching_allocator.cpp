#include "simulator/caching_allocator.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "core/error.h"

namespace shardplan {
namespace {

constexpr std::int64_t kMinBlockBytes = 512;
constexpr std::int64_t kSmallRequestBytes = kAllocatorMib;  // largest request of the small pool
constexpr std::int64_t kSmallSegmentBytes = 2 * kAllocatorMib;
constexpr std::int64_t kMinLargeRequestBytes = 10 * kAllocatorMib;  // from here a segment fits its request
constexpr std::int64_t kLargeSegmentStepBytes = 2 * kAllocatorMib;
constexpr std::int64_t kFirstAddress = std::int64_t{1} << 40;

void raise(ByteCounter& counter, std::int64_t bytes) {
  counter.current_bytes += bytes;
  counter.peak_bytes = std::max(counter.peak_bytes, counter.current_bytes);
}

void lower(ByteCounter& counter, std::int64_t bytes) { counter.current_bytes -= bytes; }

}  // namespace

CachingAllocator::CachingAllocator(const CachingAllocatorOptions& options) : options_(options), next_address_(kFirstAddress) {}

std::int64_t CachingAllocator::rounded(std::int64_t bytes) const {
  if (bytes < kMinBlockBytes) return kMinBlockBytes;
  const int log2_bytes = std::bit_width(static_cast<std::uint64_t>(bytes)) - 1;
  const int interval = std::clamp(log2_bytes - 20, 0, kNumRoundupIntervals - 1);
  const std::int64_t divisions = options_.roundup_power2_divisions[static_cast<std::size_t>(interval)];
  if (divisions <= 1 || bytes <= kMinBlockBytes * divisions) return round_up(bytes, kMinBlockBytes);
  return round_up(bytes, (std::int64_t{1} << log2_bytes) / divisions);
}

std::int64_t CachingAllocator::segment_bytes_for(std::int64_t bytes) const {
  if (bytes <= kSmallRequestBytes) return kSmallSegmentBytes;
  if (bytes < kMinLargeRequestBytes) return options_.large_segment_bytes;
  return round_up(bytes, kLargeSegmentStepBytes);
}

std::int32_t CachingAllocator::pool_of(StreamId stream, bool is_small) {
  const auto [entry, is_new] = pool_by_kind_.try_emplace({is_small, stream}, static_cast<std::int32_t>(pools_.size()));
  if (is_new) pools_.push_back({.stream = stream, .is_small = is_small});
  return entry->second;
}

bool CachingAllocator::exceeds_split_limit(std::int64_t bytes) const {
  return options_.max_split_size_bytes && bytes >= *options_.max_split_size_bytes;
}

bool CachingAllocator::should_split(const Block& block, const Request& request) const {
  const std::int64_t rest = block.bytes - request.bytes;
  if (pool_at(request.pool).is_small || options_.expandable_segments) return rest >= kMinBlockBytes;
  return !exceeds_split_limit(request.bytes) && rest > kSmallRequestBytes;
}

// --- blocks and free lists ---

CachingAllocator::Slot CachingAllocator::new_block(Block block) {
  if (unused_slots_.empty()) {
    blocks_.push_back(block);
    return static_cast<Slot>(blocks_.size() - 1);
  }
  const Slot slot = unused_slots_.back();
  unused_slots_.pop_back();
  at(slot) = block;
  return slot;
}

void CachingAllocator::drop_block(Slot slot) {
  at(slot) = {};
  unused_slots_.push_back(slot);
}

void CachingAllocator::link(Slot slot, Slot before, Slot after) {
  at(slot).before = before;
  at(slot).after = after;
  if (before != kNone) at(before).after = slot;
  if (after != kNone) at(after).before = slot;
}

void CachingAllocator::insert_free(Slot slot) {
  Block& block = at(slot);
  Pool& pool = pool_at(block.pool);
  block.freed_at_search = searches_[pool.is_small ? 1 : 0];
  const FreeKey key{block.bytes, block.address, slot};
  pool.free.insert(std::lower_bound(pool.free.begin(), pool.free.end(), key), key);
}

void CachingAllocator::erase_free(Slot slot) {
  const Block& block = at(slot);
  std::vector<FreeKey>& free = pool_at(block.pool).free;
  const FreeKey key{block.bytes, block.address, slot};
  const auto found = std::lower_bound(free.begin(), free.end(), key);
  CHECK(found != free.end() && *found == key, "a free block stands in its pool's list");
  free.erase(found);
}

// Takes a free neighbour into `slot` when both are mapped or both are not. Returns the bytes gained; 0: it stays.
std::int64_t CachingAllocator::absorb(Slot slot, Slot neighbour) {
  if (neighbour == kNone) return 0;
  Block& block = at(slot);
  const Block other = at(neighbour);
  if (other.allocated || other.num_waits > 0 || other.mapped != block.mapped) return 0;
  if (other.mapped) {
    erase_free(neighbour);
  } else {
    erase_unmapped(neighbour);
  }
  if (block.before == neighbour) {
    block.address = other.address;
    link(slot, other.before, block.after);
  } else {
    link(slot, block.before, other.after);
  }
  block.bytes += other.bytes;
  drop_block(neighbour);
  return other.bytes;
}

// --- allocate ---

CachingAllocator::Slot CachingAllocator::take_free_block(const Request& request) {
  Pool& pool = pool_at(request.pool);
  if (options_.garbage_collection_threshold_fraction > 0 && options_.memory_fraction < 1) ++searches_[pool.is_small ? 1 : 0];
  auto best = std::lower_bound(pool.free.begin(), pool.free.end(), FreeKey{request.bytes, 0, kNone});
  if (best == pool.free.end()) return kNone;
  // At the end of a growing segment a block counts with the room it can grow into: leave that to later, larger requests.
  for (auto next = best + 1;
       at(best->slot).expandable && next != pool.free.end() && size_when_grown(next->slot) < size_when_grown(best->slot); ++next) {
    best = next;
  }
  if (!exceeds_split_limit(request.bytes) && exceeds_split_limit(best->bytes)) return kNone;
  const std::int64_t waste_bytes = options_.max_non_split_rounding_bytes.value_or(options_.large_segment_bytes);
  if (exceeds_split_limit(request.bytes) && best->bytes >= request.bytes + waste_bytes) return kNone;
  const Slot slot = best->slot;
  pool.free.erase(best);
  return slot;
}

BlockId CachingAllocator::hand_out(Slot slot, const Request& request) {
  const bool was_split = is_split(at(slot));
  const bool counts_as_split = !at(slot).expandable;
  if (should_split(at(slot), request)) {
    const Slot rest = slot;
    Block front = at(rest);
    front.bytes = request.bytes;
    slot = new_block(front);
    link(slot, front.before, rest);
    Block& remaining = at(rest);
    remaining.address += request.bytes;
    remaining.bytes -= request.bytes;
    insert_free(rest);
    if (counts_as_split && was_split) lower(stats_.inactive_split, request.bytes);
    if (counts_as_split && !was_split) raise(stats_.inactive_split, remaining.bytes);
  } else if (was_split && counts_as_split) {
    lower(stats_.inactive_split, at(slot).bytes);
  }
  Block& block = at(slot);
  block.allocated = true;
  block.requested_bytes = request.requested_bytes;
  raise(stats_.allocated, block.bytes);
  raise(stats_.active, block.bytes);
  raise(stats_.requested, block.requested_bytes);
  note(AllocatorAction::Alloc, block.address, block.requested_bytes, pool_at(block.pool).stream);
  return BlockId(slot);
}

AllocationResult CachingAllocator::allocate(std::int64_t bytes, StreamId stream) {
  CHECK(bytes > 0, "an allocation asks for at least one byte");
  CHECK(bytes <= std::numeric_limits<std::int64_t>::max() / 4, "an allocation is smaller than 2^61 bytes");
  CHECK(stream.is_set(), "an allocation names its stream");
  poll_waits();
  Request request{.requested_bytes = bytes, .bytes = rounded(bytes)};
  request.segment_bytes = segment_bytes_for(request.bytes);
  request.pool = pool_of(stream, request.bytes <= kSmallRequestBytes);

  Slot slot = take_free_block(request);
  if (slot == kNone) {
    collect_garbage();
    slot = take_segment(request);
  }
  if (slot == kNone && release_oversize(request)) slot = take_segment(request);
  if (slot == kNone) {
    release_cached();
    ++stats_.num_alloc_retries;
    slot = take_segment(request);
  }
  if (slot == kNone) {
    ++stats_.num_ooms;
    const std::int64_t left_bytes =
        options_.device_bytes ? *options_.device_bytes - options_.outside_bytes - stats_.reserved.current_bytes : 0;
    note(AllocatorAction::OutOfMemory, left_bytes, bytes, stream);
    return OutOfMemory{
        .requested_bytes = bytes, .segment_bytes = request.segment_bytes, .reserved_bytes = stats_.reserved.current_bytes};
  }
  return hand_out(slot, request);
}

// --- free ---

void CachingAllocator::complete_free(Slot slot) {
  Block& block = at(slot);
  note(AllocatorAction::FreeCompleted, block.address, block.requested_bytes, pool_at(block.pool).stream);
  const std::int64_t own_bytes = block.bytes;
  lower(stats_.active, own_bytes);
  lower(stats_.requested, block.requested_bytes);
  block.requested_bytes = 0;
  // Neighbours taken in were inactive split bytes already; the merged block is that too while it is not a whole segment.
  const std::int64_t neighbour_bytes = absorb(slot, block.before) + absorb(slot, block.after);
  insert_free(slot);
  if (block.expandable) return;
  lower(stats_.inactive_split, neighbour_bytes);
  if (is_split(block)) raise(stats_.inactive_split, block.bytes);
}

void CachingAllocator::free(BlockId id) {
  CHECK(id.is_set() && id.at() < blocks_.size() && blocks_[id.at()].allocated, "a block is freed once, while it is in use");
  Block& block = blocks_[id.at()];
  block.allocated = false;
  lower(stats_.allocated, block.bytes);
  note(AllocatorAction::FreeRequested, block.address, block.requested_bytes, pool_at(block.pool).stream);
  if (!block.used_elsewhere) return complete_free(id.value);
  for (const StreamId stream : other_streams_.at(id.value)) {
    waits_[stream].push_back({.slot = id.value});
    ++block.num_waits;
  }
  block.used_elsewhere = false;
  other_streams_.erase(id.value);
}

void CachingAllocator::record_stream(BlockId id, StreamId used_on) {
  CHECK(id.is_set() && id.at() < blocks_.size() && blocks_[id.at()].allocated, "a stream is recorded for a block in use");
  Block& block = blocks_[id.at()];
  if (used_on == pool_at(block.pool).stream) return;
  block.used_elsewhere = true;
  other_streams_[id.value].insert(used_on);
}

void CachingAllocator::reach(StreamId stream) {
  const auto waits = waits_.find(stream);
  if (waits == waits_.end()) return;
  for (Wait& wait : waits->second) wait.reached = true;
}

void CachingAllocator::poll_waits() {
  for (auto& [stream, waits] : waits_) {
    std::size_t done = 0;
    for (; done < waits.size() && waits[done].reached; ++done) {
      Block& block = at(waits[done].slot);
      if (--block.num_waits == 0) complete_free(waits[done].slot);
    }
    waits.erase(waits.begin(), waits.begin() + static_cast<std::ptrdiff_t>(done));
  }
}

void CachingAllocator::wait_for_all() {
  for (const auto& [stream, waits] : waits_) reach(stream);
  poll_waits();
}

void CachingAllocator::reset_peaks() {
  for (ByteCounter* counter : {&stats_.requested, &stats_.allocated, &stats_.active, &stats_.inactive_split, &stats_.reserved})
    counter->peak_bytes = counter->current_bytes;
}

std::int64_t CachingAllocator::address(BlockId block) const { return blocks_[block.at()].address; }
std::int64_t CachingAllocator::block_bytes(BlockId block) const { return blocks_[block.at()].bytes; }

void CachingAllocator::note(AllocatorAction action, std::int64_t address, std::int64_t bytes, StreamId stream) {
  if (traces_) trace_.push_back({.action = action, .address = address, .bytes = bytes, .stream = stream});
}

}  // namespace shardplan
