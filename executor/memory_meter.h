// Reads how much device memory is held: the counting allocator on CPU, the caching allocator's statistics on CUDA.
//
// Bytes as requested, before rounding. Packing scratch of 16-bit CPU products is kept out of `current_bytes` and `peak_bytes` and
// reported apart (workspace): its size depends on the processor.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "core/memory_category.h"
#include "core/timeline.h"

namespace shardplan {

struct MemoryReading {
  std::int64_t current_bytes = 0;
  std::int64_t peak_bytes = 0;            // highest level since restart_peak
  CategoryBytes current, at_peak;         // all zero where the allocator knows no categories (CUDA)
  std::int64_t workspace_peak_bytes = 0;  // highest packing scratch since restart_peak
};

class MemoryMeter {
 public:
  virtual ~MemoryMeter() = default;
  [[nodiscard]] virtual MemoryReading read() const = 0;
  virtual void restart_peak() = 0;  // the peak starts again from the current level

  // Every change of the level, in order, where the allocator can tell; packing scratch is left out. Times from `start`.
  virtual void start_log(std::chrono::steady_clock::time_point) {}
  virtual void set_logged_task(TaskId) {}
  [[nodiscard]] virtual std::vector<MemoryChange> take_log() { return {}; }
};

}  // namespace shardplan
