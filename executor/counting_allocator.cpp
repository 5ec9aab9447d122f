#include "executor/counting_allocator.h"

#include <c10/core/Allocator.h>
#include <malloc.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <mutex>
#include <new>
#include <utility>

#include "core/error.h"

namespace shardplan {
namespace {

constexpr std::size_t kAlignment = 64;  // c10's own for CPU tensors; the header in front of a block is as long

struct alignas(kAlignment) BlockHeader {
  std::int64_t bytes = 0;
  MemoryCategory category = MemoryCategory::Temp;
};
static_assert(sizeof(BlockHeader) == kAlignment);

// [Note: process state] The library's allocator registry is process-wide, so the counts are too. All access under the lock.
struct Counter {
  std::mutex lock;
  std::int64_t level = 0, peak = 0;
  CategoryBytes by_category, at_peak;
  std::int64_t workspace = 0, workspace_peak = 0;

  // The current scope.
  MemoryCategory category = MemoryCategory::Temp;
  std::array<ExpectedResult, 8> results{};
  std::size_t num_results = 0, next_result = 0;
  PackingScratch packing;
  std::int64_t modelled_left = 0;  // of packing.modelled_bytes

  bool logs = false;
  std::chrono::steady_clock::time_point log_start;
  TaskId logged_task;
  std::vector<MemoryChange> log;

  void change(MemoryCategory what, std::int64_t delta) {
    if (what == MemoryCategory::Workspace) {
      workspace += delta;
      if (workspace > workspace_peak) workspace_peak = workspace;
      return;
    }
    level += delta;
    by_category[what] += delta;
    if (level > peak) {
      peak = level;
      at_peak = by_category;
    }
    if (logs) log.push_back({std::chrono::steady_clock::now() - log_start, what, Place::Device, delta, logged_task});
  }

  MemoryCategory category_of(std::int64_t bytes) {
    if (next_result < num_results && results[next_result].bytes == bytes) return results[next_result++].category;
    if (!packing.packs) return category;
    if (bytes > modelled_left) return MemoryCategory::Workspace;
    modelled_left -= bytes;
    return category;
  }
};

Counter& counter() {
  static Counter instance;
  return instance;
}

void release(void* data) {
  if (data == nullptr) return;
  BlockHeader* header = static_cast<BlockHeader*>(data) - 1;
  {
    Counter& c = counter();
    const std::lock_guard hold(c.lock);
    c.change(header->category, -header->bytes);
  }
  std::free(header);
}

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::Device cpu(c10::DeviceType::CPU);
    if (bytes == 0) return {nullptr, nullptr, &release, cpu};
    void* block = nullptr;
    if (posix_memalign(&block, kAlignment, bytes + sizeof(BlockHeader)) != 0) throw std::bad_alloc();
    BlockHeader* header = new (block) BlockHeader;
    header->bytes = static_cast<std::int64_t>(bytes);
    {
      Counter& c = counter();
      const std::lock_guard hold(c.lock);
      header->category = c.category_of(header->bytes);
      c.change(header->category, header->bytes);
    }
    void* data = header + 1;
    return {data, data, &release, cpu};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override { default_copy_data(to, from, bytes); }
};

}  // namespace

void install_counting_allocator() {
  static CountingAllocator allocator;
  c10::SetAllocator(c10::DeviceType::CPU, &allocator, /*priority=*/1);
}

void return_freed_pages() {
  mallopt(M_MMAP_THRESHOLD, 1 << 20);  // set, it no longer moves up with the blocks that are freed
  mallopt(M_TRIM_THRESHOLD, 1 << 20);
}

void recycle_freed_pages() {
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, -1);
  mallopt(M_TOP_PAD, 64 << 20);
}

MemoryReading CountingMeter::read() const {
  Counter& c = counter();
  const std::lock_guard hold(c.lock);
  return {c.level, c.peak, c.by_category, c.at_peak, c.workspace_peak};
}

void CountingMeter::restart_peak() {
  Counter& c = counter();
  const std::lock_guard hold(c.lock);
  c.peak = c.level;
  c.at_peak = c.by_category;
  c.workspace_peak = c.workspace;
}

AllocationScope::AllocationScope(MemoryCategory category) {
  Counter& c = counter();
  const std::lock_guard hold(c.lock);
  c.category = category;
}

AllocationScope::AllocationScope(std::span<const ExpectedResult> results, PackingScratch packing) {
  Counter& c = counter();
  const std::lock_guard hold(c.lock);
  CHECK(results.size() <= c.results.size(), "an op has at most eight results");
  std::copy(results.begin(), results.end(), c.results.begin());
  c.num_results = results.size();
  c.next_result = 0;
  c.packing = packing;
  c.modelled_left = packing.modelled_bytes;
}

AllocationScope::~AllocationScope() {
  Counter& c = counter();
  const std::lock_guard hold(c.lock);
  c.category = MemoryCategory::Temp;
  c.num_results = c.next_result = 0;
  c.packing = {};
}

void CountingMeter::start_log(std::chrono::steady_clock::time_point start) {
  Counter& c = counter();
  const std::lock_guard hold(c.lock);
  c.logs = true;
  c.log_start = start;
  c.log.clear();
}

void CountingMeter::set_logged_task(TaskId task) {
  Counter& c = counter();
  const std::lock_guard hold(c.lock);
  c.logged_task = task;
}

std::vector<MemoryChange> CountingMeter::take_log() {
  Counter& c = counter();
  const std::lock_guard hold(c.lock);
  c.logs = false;
  return std::exchange(c.log, {});
}

}  // namespace shardplan
