// A plan lowered: the StepProgram that all three readers share, and what only planner and executor understand of it.
//
// `bodies` says what each task does, `roles` what each buffer is. The executor runs `bodies` in task order and frees by the
// program's effects; it decides nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "core/step_program.h"
#include "planner/graph/op_graph.h"
#include "planner/graph/segments.h"
#include "planner/lowering/plan.h"
#include "planner/lowering/unit_layout.h"

namespace shardplan {

// How an AccumulateGrad op's contribution reaches the parameter's slice of the unit's flat gradient.
enum class GradWrite : std::uint8_t {
  None,     // not a gradient write
  InPlace,  // the op itself wrote into the slice (out-variant); the AccumulateGrad is nothing
  Copy,     // first contribution: copied (and cast) into the slice
  Add,      // further contribution: added to the slice
};

struct BodyOp {
  OpId op;
  GradWrite grad = GradWrite::None;  // of AccumulateGrad ops, and InPlace on the producing op (Mm, SumLeading)
  ParameterId grad_target;           // the parameter whose slice is written
  std::int32_t kernel = -1;          // index of its kernel in the task; -1 for views
};

struct ComputeBody {        // Forward, Recompute, Backward
  std::vector<BodyOp> ops;  // in order
};
struct UnitBody {  // Load, Gather, Free, ReduceScatter, AllReduce, OptimizerStep, Save
  UnitId unit;
  bool accumulate = false;  // ReduceScatter, AllReduce: add into gradients of earlier micro-steps
};
struct WholeBody {};  // Input, GradNorm, ClipGrad, ZeroGrad: all units

using Body = std::variant<WholeBody, UnitBody, ComputeBody>;

enum class BufferUse : std::uint8_t {
  GraphStorage,    // result of an op: `storage`
  ShardedParam,    // stored dtype, stretch
  GatheredParam,   // compute dtype, padded
  FullGrad,        // reduce dtype, padded
  ShardedGrad,     // stored dtype, stretch
  ExpAvg,          // state dtype, stretch
  ExpAvgSq,        // state dtype, stretch
  StepCounter,     // fp32 scalar
  ConstantBuffer,  // inverse frequencies: `storage`
  Scratch,         // inside a kernel: nothing for the executor to allocate
  NormScalar,      // norms and the like: small results of GradNorm
  Piece,           // load and save
  // Of stock schedules only; `unit` is set, and `parameter` where there is one for each parameter.
  GatherInput,   // the shard cast to the compute dtype
  GatherOutput,  // what the collective fills before it is copied out
  ReduceInput,   // gradients packed in the reduce dtype
  ReduceOutput,  // the rank's stretch of their sum
  Temporary,     // made by stock code beside the graph's ops: position ids, lists of the optimizer
};

struct BufferRole {
  BufferUse use = BufferUse::Scratch;
  UnitId unit;
  std::int32_t group = -1;
  StorageId storage;
  ParameterId parameter;
};

struct LoweredProgram {
  StepProgram program;
  std::vector<Body> bodies;       // by BodyId
  std::vector<BufferRole> roles;  // by BufferId
};

// Everything made from one plan for one rank role. The graph is shared: it does not depend on the phase.
struct Lowered {
  std::shared_ptr<const OpGraph> graph;
  Segments segments;
  std::vector<UnitLayout> units;
  std::vector<ParameterPlace> places;
  std::vector<LoweredProgram> phases;  // load, step1, step2, (eval), save
};

// The chosen target's schedule. `graph` may be given to share it between plans of one batch shape.
[[nodiscard]] Lowered lower(const Plan& plan);
[[nodiscard]] Lowered lower(const Plan& plan, std::shared_ptr<const OpGraph> graph, const Segments& segments);

// For a forecast: buffers have no labels, and the bodies, made of this graph for the plan's reduce dtype, may have served other
// plans.
class SegmentBodies;
[[nodiscard]] Lowered lower_for_forecast(const Plan& plan, std::shared_ptr<const OpGraph> graph, const Segments& segments,
                                         SegmentBodies& bodies);

}  // namespace shardplan
