// The plan lowered to an ordered list of tasks: the one description that is counted, simulated and run.
//
// A StepProgram is plain data for one rank role (ranks that do the same share one) and one phase. Tasks stand in
// program order, the order in which a synchronous reader runs them and in which memory is allocated and freed.
// Streams and waits say what may overlap: a task starts when the previous task of its stream and every task in
// `waits_on` have ended.
//
// Memory: `buffers` numbers every allocation of the phase. `resident` ones are alive before the first task (weights,
// states); all others are born by an Allocate effect and die by a Free effect. A buffer that is alive after the last
// task outlives the phase. Effects of a task are in order; `kernel` places them inside the task: an Allocate happens
// just before kernel number `kernel` starts, a Free right after it ended.
//
// What is not here: families, adapters, dtypes of weights, targets. `body` is an opaque number of the planner's.
//
// Units: bytes as requested, before allocator rounding; flops are counts. Errors: validate() CHECKs the laws above.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/dtype.h"
#include "core/ids.h"
#include "core/memory_category.h"

namespace shardplan {

enum class Phase : std::uint8_t { Load, Step1, Step2, Eval, Save };
[[nodiscard]] std::string_view phase_name(Phase phase);  // "load", "step1", "step2", "eval", "save"
[[nodiscard]] std::optional<Phase> phase_from_name(std::string_view name);

// Closed list. A new kind is added here and in all three readers; the compiler finds them.
enum class TaskKind : std::uint8_t {
  Load,           // fills one unit's stored shard from the checkpoint
  Input,          // ids and targets of one micro-step arrive on the device
  Gather,         // allocates and fills a unit's full parameters
  Free,           // drops a unit's full parameters
  Forward,        // forward ops of consecutive segments
  Recompute,      // forward ops run again because their saved values were dropped
  Backward,       // backward ops of consecutive segments
  ReduceScatter,  // sums a unit's full gradients over the shard axis into its shard
  AllReduce,      // sums a shard's gradients over the replicate axis
  GradNorm,       // global norm of all gradients
  ClipGrad,       // scales gradients in place
  OptimizerStep,  // one unit's states and weights
  ZeroGrad,       // drops gradients
  Save,           // writes one unit's parameters
};
inline constexpr int kNumTaskKinds = 14;
[[nodiscard]] std::string_view task_kind_name(TaskKind kind);
[[nodiscard]] std::optional<TaskKind> task_kind_from_name(std::string_view name);

enum class CollectiveKind : std::uint8_t { AllGather, ReduceScatter, AllReduce, Broadcast };
[[nodiscard]] std::string_view collective_name(CollectiveKind kind);  // "all_gather", ...
[[nodiscard]] std::optional<CollectiveKind> collective_from_name(std::string_view name);

enum class StreamKind : std::uint8_t { Compute, Gather, Reduce, Copy };
[[nodiscard]] std::string_view stream_kind_name(StreamKind kind);  // "compute", ...
[[nodiscard]] std::optional<StreamKind> stream_kind_from_name(std::string_view name);

enum class Place : std::uint8_t { Device, Host };

// One axis of the device mesh. Ranks of one group of the axis are `stride` apart: rank = sum of index * stride.
struct MeshAxis {
  std::string name;  // "shard", "replicate", "tp"
  std::int32_t degree = 1;
  std::int32_t stride = 1;
  bool operator==(const MeshAxis&) const = default;
};

struct Buffer {
  std::int64_t bytes = 0;
  MemoryCategory category = MemoryCategory::Temp;
  Place place = Place::Device;
  StreamId pool;      // stream whose allocator pool owns the block
  std::string label;  // where it comes from: "layers.3 mlp.gate_proj output", "unit blocks.3 gathered bf16"
  bool operator==(const Buffer&) const = default;
};

enum class EffectKind : std::uint8_t { Allocate, Free };

struct Effect {
  EffectKind kind = EffectKind::Allocate;
  BufferId buffer;
  std::int32_t kernel = 0;
  bool operator==(const Effect&) const = default;
};

// What limits a kernel's rate.
enum class ComputeClass : std::uint8_t { Matmul, Attention, Elementwise, Reduction, Gather, Copy };
[[nodiscard]] std::string_view compute_class_name(ComputeClass c);  // "matmul", ...
[[nodiscard]] std::optional<ComputeClass> compute_class_from_name(std::string_view name);

struct KernelWork {
  ComputeClass compute = ComputeClass::Elementwise;
  DType dtype = DType::F32;     // of the arithmetic that decides the rate
  std::int64_t flops = 0;       // multiply and add count as two
  std::int64_t read_bytes = 0;  // from device memory
  std::int64_t written_bytes = 0;
  bool operator==(const KernelWork&) const = default;
};

struct CollectiveWork {
  CollectiveKind kind = CollectiveKind::AllGather;
  AxisId axis;
  std::int64_t bytes = 0;  // of the full buffer: gathered size, size before scattering, size reduced
  bool operator==(const CollectiveWork&) const = default;
};

struct Task {
  TaskKind kind = TaskKind::Forward;
  StreamId stream;
  std::vector<TaskId> waits_on;  // earlier tasks, ascending
  std::vector<Effect> effects;
  std::vector<KernelWork> kernels;
  std::optional<CollectiveWork> collective;
  BodyId body;
  std::int32_t micro_step = 0;
  std::string label;  // "backward of layers.31 mlp", unique enough to find the place
  bool operator==(const Task&) const = default;
};

struct StepProgram {
  Phase phase = Phase::Step2;
  std::string role;  // "rank 0", "every rank"
  std::vector<MeshAxis> mesh;
  std::vector<StreamKind> streams;  // by StreamId
  std::vector<Buffer> buffers;      // by BufferId
  std::vector<BufferId> resident;   // ascending
  std::vector<Task> tasks;          // by TaskId, in program order
  bool operator==(const StepProgram&) const = default;
};

// CHECKs: ids in range, waits on earlier tasks only, resident and Allocate before Free, nothing allocated or freed twice,
// effects of a task ordered by kernel.
void validate(const StepProgram& program);

}  // namespace shardplan
