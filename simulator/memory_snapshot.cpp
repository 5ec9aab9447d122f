#include "simulator/memory_snapshot.h"

#include <chrono>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "simulator/allocator_replay.h"
#include "simulator/pickle_writer.h"

namespace shardplan {
namespace {

std::string_view action_name(AllocatorAction action) {
  switch (action) {
    case AllocatorAction::Alloc:
      return "alloc";
    case AllocatorAction::FreeRequested:
      return "free_requested";
    case AllocatorAction::FreeCompleted:
      return "free_completed";
    case AllocatorAction::SegmentAlloc:
      return "segment_alloc";
    case AllocatorAction::SegmentFree:
      return "segment_free";
    case AllocatorAction::SegmentMap:
      return "segment_map";
    case AllocatorAction::SegmentUnmap:
      return "segment_unmap";
    case AllocatorAction::OutOfMemory:
      return "oom";
  }
  CHECK(false, "an allocator action is one of the closed list");
}

bool is_of_block(AllocatorAction action) {
  return action == AllocatorAction::Alloc || action == AllocatorAction::FreeRequested || action == AllocatorAction::FreeCompleted;
}

std::string_view state_name(BlockState state) {
  switch (state) {
    case BlockState::Allocated:
      return "active_allocated";
    case BlockState::AwaitingFree:
      return "active_pending_free";
    case BlockState::Free:
      return "inactive";
  }
  CHECK(false, "a block state is one of the closed list");
}

void write(PickleWriter& pickle, std::string_view key, std::int64_t number) {
  pickle.key(key);
  pickle.integer(number);
}

void write(PickleWriter& pickle, std::string_view key, std::string_view text) {
  pickle.key(key);
  pickle.text(text);
}

void write_frame(PickleWriter& pickle, std::string_view filename, std::int64_t line, std::string_view name) {
  pickle.begin_dict();
  write(pickle, "filename", filename);
  write(pickle, "line", line);
  write(pickle, "name", name);
  pickle.end_dict();
}

class SnapshotWriter {
 public:
  SnapshotWriter(std::span<const StepProgram> programs, std::span<const Timeline> timelines, const TracedReplay& traced)
      : programs_(programs), timelines_(timelines), traced_(traced) {
    std::chrono::nanoseconds start{0};
    for (const Timeline& timeline : timelines) {
      phase_starts_.push_back(start);
      start += timeline.duration;
    }
  }

  std::string snapshot(const CachingAllocatorOptions& options) {
    pickle_.begin_dict();
    pickle_.key("segments");
    pickle_.begin_list();
    for (const SegmentView& segment : traced_.segments) write_segment(segment);
    pickle_.end_list();
    pickle_.key("device_traces");
    pickle_.begin_list();  // by device: one
    pickle_.begin_list();
    for (std::size_t i = 0; i < traced_.events.size(); ++i) write_event(i);
    pickle_.end_list();
    pickle_.end_list();
    pickle_.key("allocator_settings");
    write_settings(options);
    pickle_.key("external_annotations");
    pickle_.begin_list();
    pickle_.end_list();
    pickle_.end_dict();
    return std::move(pickle_).finish();
  }

 private:
  void write_frames(const AllocationCause& cause) {
    pickle_.key("frames");
    pickle_.begin_list();
    const StepProgram& program = programs_[static_cast<std::size_t>(cause.program)];
    if (cause.buffer.is_set()) {
      const Buffer& buffer = program.buffers[cause.buffer.at()];
      write_frame(pickle_, category_name(buffer.category), cause.buffer.value, buffer.label);
    }
    if (cause.task.is_set()) {
      const Task& task = program.tasks[cause.task.at()];
      write_frame(pickle_, phase_name(program.phase), cause.task.value,
                  task.label.empty() ? task_kind_name(task.kind) : task.label);
    } else {
      write_frame(pickle_, phase_name(program.phase), 0, "before the first task");
    }
    pickle_.end_list();
  }

  void write_event(std::size_t i) {
    const AllocatorEvent& event = traced_.events[i];
    const AllocationCause& cause = traced_.causes[i];
    pickle_.begin_dict();
    write(pickle_, "action", action_name(event.action));
    write(pickle_, event.action == AllocatorAction::OutOfMemory ? "device_free" : "addr", event.address);
    write(pickle_, "size", event.bytes);
    write(pickle_, "stream", event.stream.value);
    write(pickle_, "time_us", microseconds(cause, static_cast<std::int64_t>(i)));
    // The page needs a category of this very name as soon as there is any.
    write(pickle_, "category", is_of_block(event.action) ? category_of(cause) : "unknown");
    write_frames(cause);
    pickle_.end_dict();
  }

  std::string_view category_of(const AllocationCause& cause) const {
    if (!cause.buffer.is_set()) return "unknown";
    return category_name(programs_[static_cast<std::size_t>(cause.program)].buffers[cause.buffer.at()].category);
  }

  std::int64_t microseconds(const AllocationCause& cause, std::int64_t number) const {
    if (timelines_.empty()) return number;
    const auto program = static_cast<std::size_t>(cause.program);
    std::chrono::nanoseconds at = phase_starts_[program];
    if (cause.task.is_set()) at += timelines_[program].tasks[cause.task.at()].start;
    return std::chrono::floor<std::chrono::microseconds>(at).count();
  }

  void write_segment(const SegmentView& segment) {
    std::int64_t allocated_bytes = 0;
    std::int64_t active_bytes = 0;
    std::int64_t requested_bytes = 0;
    for (const BlockView& block : segment.blocks) {
      if (block.state == BlockState::Allocated) allocated_bytes += block.bytes;
      if (block.state != BlockState::Free) active_bytes += block.bytes;
      requested_bytes += block.requested_bytes;
    }
    pickle_.begin_dict();
    write(pickle_, "device", 0);
    write(pickle_, "address", segment.address);
    write(pickle_, "total_size", segment.bytes);
    write(pickle_, "allocated_size", allocated_bytes);
    write(pickle_, "active_size", active_bytes);
    write(pickle_, "requested_size", requested_bytes);
    write(pickle_, "stream", segment.stream.value);
    write(pickle_, "segment_type", segment.is_small_pool ? "small" : "large");
    pickle_.key("is_expandable");
    pickle_.truth(segment.is_expandable);
    pickle_.key("frames");
    pickle_.begin_list();
    pickle_.end_list();
    pickle_.key("blocks");
    pickle_.begin_list();
    for (const BlockView& block : segment.blocks) write_block(block);
    pickle_.end_list();
    pickle_.end_dict();
  }

  void write_block(const BlockView& block) {
    pickle_.begin_dict();
    write(pickle_, "address", block.address);
    write(pickle_, "size", block.bytes);
    write(pickle_, "requested_size", block.requested_bytes);
    write(pickle_, "state", state_name(block.state));
    if (block.state == BlockState::Free) {
      pickle_.key("frames");
      pickle_.begin_list();
      pickle_.end_list();
    } else {
      write_frames(traced_.block_causes[block.block.at()]);
    }
    pickle_.end_dict();
  }

  void write_settings(const CachingAllocatorOptions& options) {
    pickle_.begin_dict();
    write(pickle_, "max_split_size", options.max_split_size_bytes.value_or(-1));
    pickle_.key("garbage_collection_threshold");
    pickle_.number(options.garbage_collection_threshold_fraction);
    pickle_.key("expandable_segments");
    pickle_.truth(options.expandable_segments);
    pickle_.key("roundup_power2_divisions");
    pickle_.begin_dict();
    for (int i = 0; i < kNumRoundupIntervals; ++i)  // by the size in MiB at which an interval starts
      write(pickle_, std::to_string(1 << i), options.roundup_power2_divisions[static_cast<std::size_t>(i)]);
    pickle_.end_dict();
    pickle_.end_dict();
  }

  std::span<const StepProgram> programs_;
  std::span<const Timeline> timelines_;
  const TracedReplay& traced_;
  std::vector<std::chrono::nanoseconds> phase_starts_;
  PickleWriter pickle_;
};

}  // namespace

std::string memory_snapshot(std::span<const StepProgram> programs, const CachingAllocatorOptions& options,
                            std::span<const Timeline> timelines) {
  CHECK(timelines.empty() || timelines.size() == programs.size(), "every program has its timeline, or none has");
  for (std::size_t i = 0; i < timelines.size(); ++i)
    CHECK(timelines[i].tasks.size() == programs[i].tasks.size(), "a timeline has a span for every task of its program");
  return SnapshotWriter(programs, timelines, trace_allocator(programs, options)).snapshot(options);
}

}  // namespace shardplan
