// The side of the caching allocator that takes memory from the device and gives it back.
#include <algorithm>

#include "core/error.h"
#include "simulator/caching_allocator.h"

namespace shardplan {
namespace {

constexpr std::int64_t kSmallPageBytes = 2 * kAllocatorMib;
// Address range of a growing segment on a device that never runs out.
constexpr std::int64_t kUnlimitedRangeBytes = std::int64_t{1} << 42;

}  // namespace

bool CachingAllocator::may_take(std::int64_t bytes) const {
  return !options_.device_bytes || stats_.reserved.current_bytes + bytes <= *options_.device_bytes - options_.outside_bytes;
}

// A free block of a new segment, not in any list. kNone: the device or the allowed fraction has no room.
CachingAllocator::Slot CachingAllocator::take_segment(const Request& request) {
  if (options_.device_bytes && options_.memory_fraction < 1) {
    const auto allowed_bytes = static_cast<std::int64_t>(options_.memory_fraction * static_cast<double>(*options_.device_bytes));
    if (stats_.reserved.current_bytes + request.segment_bytes > allowed_bytes) return kNone;
  }
  if (options_.expandable_segments) return take_expandable(request);
  if (!may_take(request.segment_bytes)) return kNone;
  const std::int64_t address = next_address_;
  next_address_ += request.segment_bytes;
  ++stats_.num_segments;
  ++stats_.num_device_allocs;
  stats_.reserved.current_bytes += request.segment_bytes;
  stats_.reserved.peak_bytes = std::max(stats_.reserved.peak_bytes, stats_.reserved.current_bytes);
  note(AllocatorAction::SegmentAlloc, address, request.segment_bytes, pool_at(request.pool).stream);
  return new_block({.address = address, .bytes = request.segment_bytes, .pool = request.pool});
}

void CachingAllocator::release_segment(Slot slot) {
  const Block block = at(slot);
  CHECK(!is_split(block) && !block.expandable, "only whole segments are given back to the device");
  erase_free(slot);
  --stats_.num_segments;
  ++stats_.num_device_frees;
  stats_.reserved.current_bytes -= block.bytes;
  note(AllocatorAction::SegmentFree, block.address, block.bytes, pool_at(block.pool).stream);
  drop_block(slot);
}

// With a split limit, first gives back one block that suffices, or several of the largest.
bool CachingAllocator::release_oversize(const Request& request) {
  if (!options_.max_split_size_bytes) return false;
  const std::int64_t wanted_bytes = std::max(request.bytes, *options_.max_split_size_bytes);
  const Pool& pool = pool_at(request.pool);
  const auto one = std::lower_bound(pool.free.begin(), pool.free.end(), FreeKey{wanted_bytes, 0, kNone});
  if (one != pool.free.end() && !at(one->slot).expandable) {
    release_segment(one->slot);
    return true;
  }
  std::int64_t released_bytes = 0;
  std::vector<Slot> released;
  for (auto next = one; next != pool.free.begin() && released_bytes < wanted_bytes;) {
    --next;
    if (next->bytes < *options_.max_split_size_bytes) break;
    if (at(next->slot).expandable) continue;
    released.push_back(next->slot);
    released_bytes += next->bytes;
  }
  for (const Slot slot : released) release_segment(slot);
  return released_bytes >= wanted_bytes;
}

void CachingAllocator::release_cached() {
  wait_for_all();
  for (const auto& [kind, pool] : pool_by_kind_) release_pool(pool);
}

void CachingAllocator::release_pool(std::int32_t pool) {
  const std::vector<FreeKey> cached = pool_at(pool).free;
  for (const FreeKey& key : cached) {
    const Block& block = at(key.slot);
    if (!block.expandable && !is_split(block)) release_segment(key.slot);
  }
  for (const FreeKey& key : cached) {
    if (at(key.slot).expandable) unmap(key.slot);
  }
}

void CachingAllocator::empty_cache() { release_cached(); }

// Gives back whole large segments, those unused longest first, until reserved memory is below the threshold.
void CachingAllocator::collect_garbage() {
  if (options_.garbage_collection_threshold_fraction <= 0 || options_.memory_fraction >= 1 || !options_.device_bytes) return;
  const auto allowed_bytes = static_cast<std::int64_t>(options_.memory_fraction * static_cast<double>(*options_.device_bytes));
  const auto threshold_bytes =
      static_cast<std::int64_t>(options_.garbage_collection_threshold_fraction * static_cast<double>(allowed_bytes));
  if (stats_.reserved.current_bytes <= threshold_bytes) return;
  const std::int64_t target_bytes = stats_.reserved.current_bytes - threshold_bytes;

  std::vector<FreeKey> whole;
  for (const auto& [kind, pool] : pool_by_kind_) {
    if (kind.first) break;  // small pools are left alone
    for (const FreeKey& key : pool_at(pool).free) {
      const Block& block = at(key.slot);
      if (!is_split(block) && !block.expandable) whole.push_back(key);
    }
  }
  const auto age = [this](const FreeKey& key) { return searches_[0] - at(key.slot).freed_at_search; };
  std::int64_t total_age = 0;
  for (const FreeKey& key : whole) total_age += age(key);
  std::int64_t reclaimed_bytes = 0;
  // Each round gives back what is at least as old as the average of what is left.
  for (bool progress = true; progress && reclaimed_bytes < target_bytes && !whole.empty();) {
    progress = false;
    const double least_age = static_cast<double>(total_age) / static_cast<double>(whole.size());
    std::vector<FreeKey> kept;
    for (const FreeKey& key : whole) {
      if (static_cast<double>(age(key)) < least_age) {
        kept.push_back(key);
        continue;
      }
      progress = true;
      reclaimed_bytes += key.bytes;
      total_age -= age(key);
      release_segment(key.slot);
    }
    whole = std::move(kept);
  }
}

// --- growing segments: an address range of which some pages are mapped ---
//
// The range is a chain of blocks; unmapped ones are free and never next to each other.

std::int64_t CachingAllocator::page_bytes(std::int32_t pool) const {
  return pool_at(pool).is_small ? kSmallPageBytes : options_.large_segment_bytes;
}

std::int64_t CachingAllocator::size_when_grown(Slot slot) const {
  const Block& block = at(slot);
  if (block.after == kNone || at(block.after).mapped) return block.bytes;
  return block.bytes + at(block.after).bytes;
}

void CachingAllocator::insert_unmapped(Slot slot) {
  std::vector<FreeKey>& unmapped = pool_at(at(slot).pool).unmapped;
  const FreeKey key{0, at(slot).address, slot};
  unmapped.insert(std::lower_bound(unmapped.begin(), unmapped.end(), key), key);
}

void CachingAllocator::erase_unmapped(Slot slot) {
  std::vector<FreeKey>& unmapped = pool_at(at(slot).pool).unmapped;
  const FreeKey key{0, at(slot).address, slot};
  const auto found = std::lower_bound(unmapped.begin(), unmapped.end(), key);
  CHECK(found != unmapped.end() && *found == key, "an unmapped block stands in its pool's list");
  unmapped.erase(found);
}

// Maps the first `bytes` of an unmapped block, in whole pages, and merges them with free neighbours into `slot`.
bool CachingAllocator::map(Slot slot, std::int64_t bytes) {
  const Block before = at(slot);
  const std::int64_t mapped_bytes = round_up(bytes, page_bytes(before.pool));
  CHECK(!before.mapped && mapped_bytes <= before.bytes, "pages are mapped once, inside their range");
  if (!may_take(mapped_bytes)) return false;
  erase_unmapped(slot);
  at(slot).mapped = true;
  if (mapped_bytes < before.bytes) {
    Block rest = before;
    rest.address += mapped_bytes;
    rest.bytes -= mapped_bytes;
    const Slot rest_slot = new_block(rest);
    link(rest_slot, slot, before.after);
    insert_unmapped(rest_slot);
    at(slot).bytes = mapped_bytes;
  }
  absorb(slot, at(slot).before);
  absorb(slot, at(slot).after);
  insert_free(slot);
  ++stats_.num_device_allocs;
  stats_.reserved.current_bytes += mapped_bytes;
  stats_.reserved.peak_bytes = std::max(stats_.reserved.peak_bytes, stats_.reserved.current_bytes);
  note(AllocatorAction::SegmentMap, before.address, mapped_bytes, pool_at(before.pool).stream);
  return true;
}

// Gives back the pages that lie wholly inside a free block; what is left of it at either end stays free.
void CachingAllocator::unmap(Slot slot) {
  const Block block = at(slot);
  const std::int64_t page = page_bytes(block.pool);
  // Pages are counted from the start of the range, which is a multiple of no page size: go by the first block of the chain.
  std::int64_t range_start = block.address;
  for (Slot earlier = slot; earlier != kNone; earlier = at(earlier).before) range_start = at(earlier).address;
  const std::int64_t begin = range_start + round_up(block.address - range_start, page);
  const std::int64_t end = range_start + (block.address + block.bytes - range_start) / page * page;
  if (begin >= end) return;
  erase_free(slot);
  if (begin > block.address) {
    Block front = block;
    front.bytes = begin - block.address;
    const Slot front_slot = new_block(front);
    link(front_slot, block.before, slot);
    insert_free(front_slot);
  }
  if (end < block.address + block.bytes) {
    Block back = block;
    back.address = end;
    back.bytes = block.address + block.bytes - end;
    const Slot back_slot = new_block(back);
    link(back_slot, slot, block.after);
    insert_free(back_slot);
  }
  Block& unmapped = at(slot);
  unmapped.address = begin;
  unmapped.bytes = end - begin;
  unmapped.mapped = false;
  absorb(slot, unmapped.before);
  absorb(slot, unmapped.after);
  ++stats_.num_device_frees;
  stats_.reserved.current_bytes -= end - begin;
  note(AllocatorAction::SegmentUnmap, begin, end - begin, pool_at(block.pool).stream);
  if (is_split(at(slot))) {
    insert_unmapped(slot);
  } else {
    drop_block(slot);  // nothing mapped is left: the address range goes too
  }
}

// The lowest free stretch that touches unmapped pages and has room; a new range when there is none.
CachingAllocator::Slot CachingAllocator::find_expandable(const Request& request) {
  const auto is_usable = [this](Slot slot) {
    if (slot == kNone) return false;
    const Block& block = at(slot);
    return !block.allocated && block.num_waits == 0;
  };
  for (const FreeKey& key : pool_at(request.pool).unmapped) {
    const Slot before = at(key.slot).before;
    const Slot first = is_usable(before) ? before : key.slot;
    std::int64_t room_bytes = 0;
    for (Slot next = first; room_bytes < request.bytes && is_usable(next); next = at(next).after) room_bytes += at(next).bytes;
    if (room_bytes >= request.bytes) return first;
  }
  // As long as device and an eighth, so that it never runs out before the device does.
  const std::int64_t wanted_bytes =
      options_.device_bytes ? *options_.device_bytes + *options_.device_bytes / 8 : kUnlimitedRangeBytes;
  const std::int64_t range_bytes = round_up(wanted_bytes, page_bytes(request.pool));
  const Slot slot =
      new_block({.address = next_address_, .bytes = range_bytes, .pool = request.pool, .mapped = false, .expandable = true});
  next_address_ += range_bytes;
  insert_unmapped(slot);
  return slot;
}

CachingAllocator::Slot CachingAllocator::take_expandable(const Request& request) {
  Slot slot = find_expandable(request);
  const auto bytes_of = [this](Slot which) { return at(which).bytes; };
  if (!at(slot).mapped && !map(slot, std::min(bytes_of(slot), request.bytes))) return kNone;
  while (bytes_of(slot) < request.bytes) {
    const Slot next = at(slot).after;
    if (!map(next, std::min(request.bytes - bytes_of(slot), bytes_of(next)))) return kNone;
    slot = next;  // took the block before it in
  }
  erase_free(slot);
  return slot;
}

std::vector<SegmentView> CachingAllocator::segments() const {
  std::vector<SegmentView> views;
  for (std::size_t first = 0; first < blocks_.size(); ++first) {
    const Block& head = blocks_[first];
    if (head.bytes == 0 || !head.mapped) continue;
    if (head.before != kNone && at(head.before).mapped) continue;
    const Pool& pool = pool_at(head.pool);
    SegmentView view{
        .address = head.address, .stream = pool.stream, .is_small_pool = pool.is_small, .is_expandable = head.expandable};
    for (Slot slot = static_cast<Slot>(first); slot != kNone && at(slot).mapped; slot = at(slot).after) {
      const Block& block = at(slot);
      const BlockState state = block.allocated       ? BlockState::Allocated
                               : block.num_waits > 0 ? BlockState::AwaitingFree
                                                     : BlockState::Free;
      view.blocks.push_back({.block = BlockId(slot),
                             .address = block.address,
                             .bytes = block.bytes,
                             .requested_bytes = block.requested_bytes,
                             .state = state});
      view.bytes += block.bytes;
    }
    views.push_back(std::move(view));
  }
  std::sort(views.begin(), views.end(), [](const SegmentView& a, const SegmentView& b) { return a.address < b.address; });
  return views;
}

}  // namespace shardplan
