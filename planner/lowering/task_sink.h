// What a schedule writes to: tasks with their waits, births and deaths of buffers, kernels and collectives, in program order.
//
// A schedule is written once against this. ProgramBuilder makes the StepProgram from it, StepCounter (quick_forecast.cpp) only adds
// up bytes and time; so a quick count and the program cannot disagree about what happens.
//
// Between begin() and end(): allocate() stands before the next kernel, release() after the last one.
#pragma once

#include <cstdint>
#include <span>

#include "planner/lowering/lowered_program.h"
#include "planner/lowering/segment_bodies.h"

namespace shardplan {

// Streams of every program of this planner, by StreamId.
inline constexpr StreamId kComputeStream{0};
inline constexpr StreamId kGatherStream{1};
inline constexpr StreamId kReduceStream{2};
inline constexpr StreamId kCopyStream{3};

// Axes of every mesh, by AxisId.
inline constexpr AxisId kShardAxis{0};
inline constexpr AxisId kReplicateAxis{1};

struct TaskHead {
  TaskKind kind = TaskKind::Forward;
  StreamId stream = kComputeStream;
  std::int32_t micro_step = 0;
  UnitId unit;              // unit tasks
  bool accumulate = false;  // unit tasks: see UnitBody
  SegmentId first, last;    // compute tasks
};

// Which allocation is meant. `instance` tells a crossing made in forward (0) from the same one made again by a recompute (1), and
// buffers of one use from each other.
struct BufferKey {
  BufferUse use = BufferUse::GraphStorage;
  UnitId unit;
  std::int32_t group = -1;
  StorageId storage;
  std::int32_t instance = 0;
};

// What becomes of one of SegmentBody::decided_outside.
struct OutsideDecision {
  bool happens = false;       // a last read frees, a gradient write allocates; a crossing is always allocated
  std::int32_t instance = 0;  // of the crossing
  UnitId unit;                // gradient writes: whose flat gradient is born
  std::int32_t group = -1;
  std::int64_t bytes = 0;
};

class TaskSink {
 public:
  virtual ~TaskSink() = default;
  virtual void resident(const BufferKey& key, std::int64_t bytes, MemoryCategory category) = 0;
  virtual TaskId begin(const TaskHead& head) = 0;
  virtual void wait(TaskId earlier) = 0;
  virtual void allocate(const BufferKey& key, std::int64_t bytes, MemoryCategory category) = 0;
  virtual void release(const BufferKey& key, std::int64_t bytes) = 0;
  virtual void kernel(const KernelWork& work) = 0;
  virtual void collective(const CollectiveWork& work) = 0;
  // Runs a segment's body; `decisions`: one for each of body.decided_outside.
  virtual void body(const SegmentBody& body, std::span<const OutsideDecision> decisions) = 0;
  virtual void end() = 0;
};

}  // namespace shardplan
