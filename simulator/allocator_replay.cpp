#include "simulator/allocator_replay.h"

#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <variant>

#include "core/error.h"

namespace shardplan {
namespace {

StreamId pool_of(const Buffer& buffer) { return buffer.pool.is_set() ? buffer.pool : StreamId(0); }
bool takes_device_memory(const Buffer& buffer) { return buffer.place == Place::Device && buffer.bytes > 0; }

class Replayer {
 public:
  Replayer(std::span<const StepProgram> programs, const CachingAllocatorOptions& options, bool traces)
      : programs_(programs), allocator_(options), traces_(traces) {
    if (traces_) allocator_.start_trace();
  }

  void run() {
    for (std::size_t i = 0; i < programs_.size(); ++i) {
      program_ = static_cast<std::int32_t>(i);
      task_ = TaskId();
      if (!begin(programs_[i]) || !run_tasks(programs_[i])) break;
    }
    result_.stats = allocator_.stats();
  }

  [[nodiscard]] AllocatorReplay result() const { return result_; }
  [[nodiscard]] TracedReplay traced() const {
    return {.replay = result_,
            .events = allocator_.trace(),
            .causes = causes_,
            .segments = allocator_.segments(),
            .block_causes = block_causes_};
  }

 private:
  using Key = std::tuple<std::string_view, MemoryCategory, std::int64_t, StreamId>;
  static Key key_of(const Buffer& buffer) { return {buffer.label, buffer.category, buffer.bytes, pool_of(buffer)}; }

  // Hands blocks of the program before on to the resident buffers of this one. False: the device ran out.
  bool begin(const StepProgram& program) {
    std::map<Key, std::vector<BlockId>> left;
    const StepProgram* const before = program_ > 0 ? &programs_[static_cast<std::size_t>(program_) - 1] : nullptr;
    for (std::size_t i = blocks_.size(); i-- > 0;)  // backwards, so that the first is taken first
      if (blocks_[i].is_set()) left[key_of(before->buffers[i])].push_back(blocks_[i]);
    blocks_.assign(program.buffers.size(), BlockId());
    std::vector<BufferId> missing;
    for (const BufferId id : program.resident) {
      const Buffer& buffer = program.buffers[id.at()];
      if (!takes_device_memory(buffer)) continue;
      const auto found = left.find(key_of(buffer));
      if (found == left.end() || found->second.empty()) {
        missing.push_back(id);
        continue;
      }
      blocks_[id.at()] = found->second.back();
      found->second.pop_back();
      if (traces_) block_causes_[blocks_[id.at()].at()] = {.program = program_, .buffer = id};
    }
    for (auto& [key, blocks] : left) {
      for (const BlockId block : blocks) {
        in_use_[std::get<MemoryCategory>(key)] -= std::get<std::int64_t>(key);
        allocator_.free(block);
        note_cause(BufferId());
      }
    }
    result_.by_program.emplace_back();
    note_peaks();
    for (const BufferId id : missing)
      if (!allocate(program, id)) return false;
    return true;
  }

  bool run_tasks(const StepProgram& program) {
    for (std::size_t t = 0; t < program.tasks.size(); ++t) {
      task_ = TaskId(static_cast<std::int64_t>(t));
      for (const Effect& effect : program.tasks[t].effects) {
        if (!takes_device_memory(program.buffers[effect.buffer.at()])) continue;
        if (effect.kind == EffectKind::Free) {
          free(program, effect.buffer);
        } else if (!allocate(program, effect.buffer)) {
          return false;
        }
      }
    }
    return true;
  }

  bool allocate(const StepProgram& program, BufferId id) {
    const Buffer& buffer = program.buffers[id.at()];
    const AllocationResult outcome = allocator_.allocate(buffer.bytes, pool_of(buffer));
    note_cause(id);
    if (const OutOfMemory* out = std::get_if<OutOfMemory>(&outcome)) {
      result_.failure = {.program = program_, .task = task_, .buffer = id, .out_of_memory = *out};
      return false;
    }
    const BlockId block = std::get<BlockId>(outcome);
    blocks_[id.at()] = block;
    in_use_[buffer.category] += buffer.bytes;
    if (traces_) {
      if (block.at() >= block_causes_.size()) block_causes_.resize(block.at() + 1);
      block_causes_[block.at()] = {.program = program_, .task = task_, .buffer = id};
    }
    note_peaks();
    return true;
  }

  void free(const StepProgram& program, BufferId id) {
    const Buffer& buffer = program.buffers[id.at()];
    CHECK(blocks_[id.at()].is_set(), "a program frees what is alive: " + buffer.label);
    in_use_[buffer.category] -= buffer.bytes;
    allocator_.free(std::exchange(blocks_[id.at()], BlockId()));
    note_cause(id);
  }

  void note_peaks() {
    const AllocatorStats& stats = allocator_.stats();
    AllocatorPeaks& here = result_.by_program.back();
    const auto note = [this](AllocatorPeak& peak, const ByteCounter& counter) {
      if (counter.current_bytes <= peak.bytes) return false;
      peak = {.bytes = counter.current_bytes, .program = program_, .task = task_};
      return true;
    };
    for (AllocatorPeaks* peaks : {&here, &result_.peaks}) {
      note(peaks->requested, stats.requested);
      note(peaks->active, stats.active);
      note(peaks->reserved, stats.reserved);
      const bool is_new = note(peaks->allocated, stats.allocated);
      if (!is_new || peaks != &result_.peaks) continue;
      result_.at_allocated_peak = in_use_;
      result_.at_allocated_peak[MemoryCategory::Rounding] += stats.allocated.current_bytes - in_use_.total();
    }
  }

  // Every event of the last call has this cause.
  void note_cause(BufferId buffer) {
    if (traces_) causes_.resize(allocator_.trace().size(), {.program = program_, .task = task_, .buffer = buffer});
  }

  std::span<const StepProgram> programs_;
  CachingAllocator allocator_;
  bool traces_;
  std::int32_t program_ = 0;
  TaskId task_;
  std::vector<BlockId> blocks_;  // by BufferId of the current program
  CategoryBytes in_use_;         // requested
  AllocatorReplay result_;
  std::vector<AllocationCause> causes_;
  std::vector<AllocationCause> block_causes_;
};

}  // namespace

AllocatorReplay replay_allocator(std::span<const StepProgram> programs, const CachingAllocatorOptions& options) {
  Replayer replayer(programs, options, false);
  replayer.run();
  return replayer.result();
}

AllocatorReplay replay_allocator(const StepProgram& program, const CachingAllocatorOptions& options) {
  return replay_allocator(std::span(&program, 1), options);
}

TracedReplay trace_allocator(std::span<const StepProgram> programs, const CachingAllocatorOptions& options) {
  Replayer replayer(programs, options, true);
  replayer.run();
  return replayer.traced();
}

}  // namespace shardplan
