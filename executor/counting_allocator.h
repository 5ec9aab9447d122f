// The CPU allocator of an executing process: asks malloc, and counts every requested byte by category.
//
// A block remembers its category in a header in front of it, so that a free needs no lookup. What is allocated outside a scope is
// booked as Temp. Scopes say what the interpreter is about to allocate; one interpreter runs in a process, library threads may
// allocate inside its scope, so the scope is process-wide and every call is thread-safe.
//
// Left out: bytes that libraries take behind c10 (products' packing buffers of MKL, compiled kernels), and malloc's own overhead.
// recycle_freed_pages changes no count.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "core/ids.h"
#include "core/memory_category.h"
#include "core/timeline.h"
#include "executor/memory_meter.h"

namespace shardplan {

// Makes it the CPU allocator of the process. Call before the first tensor; calling again does nothing.
void install_counting_allocator();

// Lets malloc keep large freed blocks instead of returning them to the system: a training step allocates the same sizes over and
// over, and fresh pages cost more than most pointwise kernels. Resident memory then stays at its highest level.
void recycle_freed_pages();

// The opposite: a block of a mebibyte or more is a mapping of its own and goes back to the system when it is freed. For loading,
// where what a rank's memory grows by is promised.
void return_freed_pages();

class CountingMeter final : public MemoryMeter {
 public:
  [[nodiscard]] MemoryReading read() const override;
  void restart_peak() override;
  void start_log(std::chrono::steady_clock::time_point start) override;
  void set_logged_task(TaskId task) override;
  [[nodiscard]] std::vector<MemoryChange> take_log() override;
};

// What the code inside the scope allocates. `results` are the categories and bytes of the results it returns, in the order in which
// they are allocated; anything else is Temp. Of an op that packs (16-bit CPU products) only what fits into its modelled scratch is
// Temp, the rest is workspace.
struct ExpectedResult {
  std::int64_t bytes = 0;
  MemoryCategory category = MemoryCategory::Activation;
};
struct PackingScratch {
  bool packs = false;
  std::int64_t modelled_bytes = 0;
};

class AllocationScope {
 public:
  explicit AllocationScope(MemoryCategory category);
  AllocationScope(std::span<const ExpectedResult> results, PackingScratch packing);
  ~AllocationScope();
  AllocationScope(const AllocationScope&) = delete;
  AllocationScope& operator=(const AllocationScope&) = delete;
};

}  // namespace shardplan
