// The schedule of stock PyTorch FSDP2 (2.11): what fully_shard, autograd, the modelling code and torch.optim hold on one rank, task
// by task. docs/schedule_fsdp2.md.
//
// Before: a graph made for stock kernels, and the switches of fully_shard. After: a lawful program of the phase, and the places in
// it where PyTorch's own memory tracker was read. Models: eager mode, default streams, implicit prefetch. Leaves out: explicit
// prefetch, host offload, tensor parallel, compiled code. Units: bytes as requested; every storage is a buffer of its own, so
// rounding each up to 512 B gives the allocator's request. Source: PyTorch 2.11 torch/distributed/fsdp/_fully_shard.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planner/lowering/lowered_program.h"
#include "planner/lowering/stock/stock_forward.h"

namespace shardplan {

// What becomes of a unit's full parameters after its forward.
struct ReshardAfterForward {
  enum class Kind : std::uint8_t { Keep, Free, Smaller } kind = Kind::Free;
  std::int32_t degree = 0;  // Smaller: shards of this many ranks stay
  bool operator==(const ReshardAfterForward&) const = default;
};

// One call of fully_shard. The first unit is the root; its forward is the whole forward.
struct Fsdp2Unit {
  std::string name;                     // "root", "layers.3"
  std::vector<ParameterId> parameters;  // in module order; may be none
  PositionRange forward;                // positions of StockForward that run inside its modules
  ReshardAfterForward reshard;
};

enum class Fsdp2Wrap : std::uint8_t {
  Blocks,           // every decoder layer, or every few; the rest in the root
  Root,             // everything in one unit
  EmbedBlocksHead,  // token embedding; every layer; final norm with head; the root is what is left
};

// PyTorch's optimizers in their forms.
enum class StockOptimizer : std::uint8_t { FusedAdamW, ForeachAdamW, LoopAdamW, ForeachSgd, ForeachSgdMomentum };
// What each keeps on the device for every trained parameter. A momentum stands as ExpAvg.
[[nodiscard]] std::vector<BufferUse> optimizer_states(StockOptimizer optimizer);

struct Fsdp2Switches {
  Fsdp2Wrap wrap = Fsdp2Wrap::Blocks;
  std::int32_t layers_per_unit = 1;  // consecutive layers in one call
  ReshardAfterForward inner, root{.kind = ReshardAfterForward::Kind::Keep},
      head;                                   // inner: of layers and of an embedding of its own
  std::vector<ReshardAfterForward> by_layer;  // of the unit that begins with the layer; empty: `inner`
  MeshDegrees mesh;
  std::int32_t shard_rank = 0;                     // position on the shard axis: trailing ranks hold fewer rows
  std::optional<DType> param_dtype, reduce_dtype;  // MixedPrecisionPolicy
  DType stored = DType::F32;
  std::vector<DType> stored_by_parameter;  // where they differ (adapters); empty: `stored`
  std::vector<bool> checkpointed;          // by decoder layer: non-reentrant checkpoint; empty: none
  std::int32_t micro_steps = 1;
  bool reduces_every_micro_step = true;  // false: set_requires_gradient_sync(False) on all but the last
  std::int64_t chunk_tokens = 0;         // head and loss run on so many tokens at a time, each piece checkpointed; 0: all at once
  bool keeps_outputs = false;            // the caller holds the output object, with its logits, until the next forward returns
  StockOptimizer optimizer = StockOptimizer::FusedAdamW;
  // The engine adds a gradient to the one that waits in place when nobody else holds that; never with fake tensors, as trackers
  // use.
  bool adds_in_place = true;
};

// Units in module order, the root first.
[[nodiscard]] std::vector<Fsdp2Unit> fsdp2_units(const OpGraph& graph, const StockForward& forward, const Fsdp2Switches& switches);

struct Fsdp2Program {
  LoweredProgram lowered;
  // Last task before each reading; unset: before the first task.
  std::vector<TaskId> after_forward, after_backward;  // by micro-step
  TaskId after_optimizer, after_zero_grad;
};

// `phase`: Step1 (states are born in it) or Step2.
[[nodiscard]] Fsdp2Program lower_fsdp2_step(const OpGraph& graph, const Segments& segments, const Fsdp2Switches& switches,
                                            Phase phase);

}  // namespace shardplan
