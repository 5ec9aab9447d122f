#include "planner/lowering/memory_count.h"

#include <algorithm>

#include "core/units.h"

namespace shardplan {
namespace {

// Levels of one rank while the program is walked.
class Levels {
 public:
  Levels(const StepProgram& program, std::int64_t rounding_bytes) : program_(program), rounding_bytes_(rounding_bytes) {}

  void change(BufferId id, std::int64_t sign) {
    const Buffer& buffer = program_.buffers[id.at()];
    if (buffer.place == Place::Host) {
      host_ += sign * buffer.bytes;
      return;
    }
    const std::int64_t rounded = round_up(buffer.bytes, rounding_bytes_);
    by_category_[buffer.category] += sign * buffer.bytes;
    by_category_[MemoryCategory::Rounding] += sign * (rounded - buffer.bytes);
    device_ += sign * rounded;
  }

  void observe(TaskId task, MemoryCount& count) const {
    count.host_peak_bytes = std::max(count.host_peak_bytes, host_);
    if (device_ <= count.peak_bytes) return;
    count.peak_bytes = device_;
    count.peak_task = task;
    count.at_peak = by_category_;
  }

  [[nodiscard]] std::int64_t device() const { return device_; }

 private:
  const StepProgram& program_;
  std::int64_t rounding_bytes_;
  CategoryBytes by_category_;
  std::int64_t device_ = 0;
  std::int64_t host_ = 0;
};

}  // namespace

MemoryCount count_memory(const StepProgram& program, std::int64_t rounding_bytes) {
  MemoryCount count;
  Levels levels(program, rounding_bytes);
  for (const BufferId id : program.resident) levels.change(id, +1);
  levels.observe({}, count);
  for (std::size_t t = 0; t < program.tasks.size(); ++t) {
    for (const Effect& effect : program.tasks[t].effects) {
      levels.change(effect.buffer, effect.kind == EffectKind::Allocate ? +1 : -1);
      if (effect.kind == EffectKind::Allocate) levels.observe(TaskId(static_cast<std::int64_t>(t)), count);
    }
  }
  count.end_bytes = levels.device();
  return count;
}

}  // namespace shardplan
