// What the tasks of each segment do, compiled once per graph: ops in order, births and deaths of storages, work of the kernels.
//
// A storage that only one segment touches lives and dies by that segment's own tasks; when depends on whether the segment is
// recomputed, and on nothing else of a plan. A storage that several segments touch (the activation between two segments, rotary
// tables, masks, ids, targets, the gradient between two segments) is a *crossing*: bodies only mark where it is born and where it
// could die, the schedule knows the last task that reads it. The full program and the quick forecast are made from the same bodies.
//
// Bytes as requested; `counted` ones are rounded up to BodyOptions::rounding_bytes. Not thread-safe: bodies are compiled on first
// use.
#pragma once

#include <bitset>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "planner/graph/ops.h"
#include "planner/lowering/lowered_program.h"

namespace shardplan {

struct BodyOptions {
  DType reduce = DType::F32;                                          // dtype of the units' flat gradients
  std::int64_t rounding_bytes = 1;                                    // of the counted bytes
  std::function<std::int64_t(const KernelWork&)> kernel_nanoseconds;  // empty: bodies take no time
};

enum class Happening : std::uint8_t {
  Allocate,          // index: storage
  Free,              // index: storage
  Scratch,           // bytes that live inside this kernel only
  CrossingAllocate,  // index: crossing
  CrossingLastRead,  // index: crossing; it dies here if no later task reads it
  GradientWrite,     // index: parameter; first contribution to it, the unit's flat gradient is needed from here
};

struct BodyEvent {
  Happening what = Happening::Allocate;
  std::int32_t kernel = 0;
  std::int32_t index = -1;
  std::int64_t bytes = 0;
};

// A stretch of a body between two events that the schedule decides, seen from outside: changes of the level are relative to its
// start.
struct BodyPiece {
  std::int64_t counted_peak = 0;
  std::int64_t counted_net = 0;
  std::int64_t counted_bytes = 0;  // of the event that ends the piece, for crossings
};

struct SegmentBody {
  SegmentId segment;
  std::vector<BodyOp> ops;
  std::vector<KernelWork> kernels;
  std::vector<BodyEvent> events;           // by kernel; inside a kernel births, scratch, deaths
  std::vector<BodyEvent> decided_outside;  // those of `events` that the schedule decides, in order
  std::vector<BodyPiece> pieces;           // one more than decided_outside
  std::vector<ParameterId> reads;          // parameters that kernels read, each once
  std::vector<ParameterId> contributions;  // one for each AccumulateGrad
  std::int64_t nanoseconds = 0;
};

struct Crossing {
  StorageId storage;
  std::int64_t bytes = 0;
  std::int64_t counted_bytes = 0;
  SegmentId made_in;  // unset: from outside (ids, targets)
  OpPass made_by_pass = OpPass::Forward;
  OpKind made_by = OpKind::View;
};

using KeepSet = std::bitset<128>;  // by OpKind
[[nodiscard]] KeepSet keep_set(const std::vector<OpKind>& kinds);

// A value of an earlier segment that a recomputed segment reads: bit `bit` of that segment's demand.
struct Demand {
  SegmentId segment;
  std::int32_t bit = 0;
};

struct RecomputedSegment {
  SegmentBody forward;    // keeps nothing but results of kept ops that are read later
  SegmentBody recompute;  // empty when nothing of the segment is needed again
  std::vector<Demand> demands;
};

class SegmentBodies {
 public:
  // Graph and segments outlive this.
  SegmentBodies(const OpGraph& graph, const Segments& segments, BodyOptions options);
  ~SegmentBodies();

  [[nodiscard]] const SegmentBody& forward(SegmentId segment);          // keeps what backward reads
  [[nodiscard]] const SegmentBody& evaluation(SegmentId segment);       // keeps nothing
  [[nodiscard]] const SegmentBody& backward(SegmentId segment);         // gradients start here
  [[nodiscard]] const SegmentBody& backward_adding(SegmentId segment);  // gradients of an earlier micro-step are there
  // `demand`: values of this segment that later segments of its span need again, by bit.
  [[nodiscard]] const RecomputedSegment& recomputed(SegmentId segment, const KeepSet& keep, std::uint64_t demand);

  [[nodiscard]] const std::vector<Crossing>& crossings() const { return crossings_; }
  [[nodiscard]] const OpGraph& graph() const { return graph_; }
  [[nodiscard]] const Segments& segments() const { return segments_; }
  [[nodiscard]] const BodyOptions& options() const { return options_; }
  [[nodiscard]] bool runs_backward(SegmentId segment) const;

 private:
  struct Compiled;   // of one segment, by kind of body
  struct Workspace;  // scratch of the compiler
  class Compiler;

  void find_crossings();
  void find_gradient_writes();

  const OpGraph& graph_;
  const Segments& segments_;
  BodyOptions options_;
  std::vector<OpCost> costs_;              // by OpId
  std::vector<OpId> producer_;             // by ValueId
  std::vector<std::int32_t> crossing_of_;  // by StorageId, -1 for others
  std::vector<bool> read_in_backward_;     // by StorageId: by a kernel of a backward op
  std::vector<std::int32_t> demand_bit_;   // by ValueId, -1 when no other segment reads it
  std::vector<Crossing> crossings_;
  struct GradientSource {   // of one AccumulateGrad op
    bool is_first = false;  // to its parameter
    OpId written_by;        // set when this op can write into the slice
  };
  std::vector<GradientSource> gradient_sources_;     // by OpId, of AccumulateGrad ops
  std::vector<OpId> accumulated_by_;                 // by OpId: the AccumulateGrad whose slice a Mm or SumLeading may write
  std::vector<std::unique_ptr<Compiled>> compiled_;  // by SegmentId
  std::unique_ptr<Workspace> workspace_;
};

}  // namespace shardplan
