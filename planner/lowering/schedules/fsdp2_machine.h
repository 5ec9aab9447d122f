// What fully_shard's hooks do: gathers, copies out, frees and reductions of the units, and the buffers that wait for each other.
//
// A call is one hook of PyTorch 2.11; tasks are emitted where the hook runs them. Pools: casts and gather outputs on the gather
// stream, full parameters, gradients and reduce inputs on the compute stream, reduce outputs and sharded gradients on the reduce
// stream (the stand-ins for copy-in, default and reduce-scatter streams). Source:
// torch/distributed/fsdp/_fully_shard/{_fsdp_param_group,_fsdp_collectives,_fsdp_state,_fsdp_param}.py.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/lowering/program_builder.h"
#include "planner/lowering/schedules/fsdp2.h"

namespace shardplan {

class Fsdp2Machine {
 public:
  // All outlive this.
  Fsdp2Machine(const OpGraph& graph, const std::vector<Fsdp2Unit>& units, const Fsdp2Switches& switches, ProgramBuilder& builder);

  // Sharded parameters; before the first task.
  void place_parameters();
  void begin_micro_step(std::int32_t micro_step, bool reduces);

  void pre_forward(std::size_t unit);
  void post_forward(std::size_t unit);
  void end_forward();                   // the root's post-forward: the last gather output goes
  void pre_backward(std::size_t unit);  // once in a backward pass, when a gradient reaches the unit's output
  void post_backward(std::size_t unit);
  void end_backward();  // the final callback of the whole backward

  // A gradient of the parameter is complete; `buffer` is owned from here on.
  void hand_over(ParameterId parameter, BufferId buffer);
  [[nodiscard]] bool has_gradient(ParameterId parameter) const { return gradient_[parameter.at()].is_set(); }

  void zero_gradients();  // inside a task
  [[nodiscard]] TaskId last_gather(std::size_t unit) const { return units_[unit].copied_out; }
  [[nodiscard]] TaskId last_reduction() const { return last_reduction_; }

  // Elements of the rank's shard: padded as stored, valid as optimizer states follow it.
  [[nodiscard]] std::int64_t padded_numel(ParameterId parameter) const;
  [[nodiscard]] std::int64_t valid_numel(ParameterId parameter) const;
  [[nodiscard]] DType stored(ParameterId parameter) const;
  [[nodiscard]] DType compute(ParameterId parameter) const;

 private:
  enum class Training : std::uint8_t { Idle, Forward, PreBackward, PostBackward };
  enum class Sharded : std::uint8_t { Shard, SmallerShard, Full };
  struct State {
    Training training = Training::Idle;
    Sharded sharded = Sharded::Shard;
    BufferId gather_output;  // issued, not yet copied out
    TaskId gather, copied_out;
    std::vector<std::int32_t> forward_indices;
    std::vector<BufferId> sharded_gradients;  // flat, one for each reduction that was not added
    BufferId all_reduce_input;
  };

  void unshard(std::size_t unit);
  void wait_for_unshard(std::size_t unit);
  void reshard(std::size_t unit);
  void keep_smaller_shards(std::size_t unit);
  void prefetch_before(std::size_t unit);
  void widen_gradients(std::size_t unit);
  void reduce(std::size_t unit);
  void finalize(std::size_t unit);
  void copy_shards(std::size_t unit);

  [[nodiscard]] std::int64_t gathered_bytes(std::size_t unit) const;
  [[nodiscard]] std::int64_t cast_bytes(std::size_t unit) const;
  [[nodiscard]] ParameterId first_trained(std::size_t unit) const;
  [[nodiscard]] DType reduce_dtype(std::size_t unit) const;
  [[nodiscard]] std::string named(std::string_view what, std::size_t unit) const;
  [[nodiscard]] Buffer buffer(std::int64_t bytes, MemoryCategory category, StreamId pool, std::string label) const;
  [[nodiscard]] BufferRole role(BufferUse use, std::size_t unit, ParameterId parameter = {}) const;

  const OpGraph& graph_;
  const std::vector<Fsdp2Unit>& plan_;
  const Fsdp2Switches& switches_;
  ProgramBuilder& builder_;
  std::int32_t micro_step_ = 0;
  bool reduces_ = true;
  std::vector<State> units_;
  std::vector<std::size_t> forward_order_;  // units in the order of their post-forwards
  std::vector<BufferId> full_;              // by ParameterId: full parameter
  std::vector<BufferId> smaller_;           // by ParameterId: shard kept after forward
  std::vector<BufferId> gradient_;          // by ParameterId: full gradient in compute dtype
  std::vector<BufferId> accumulated_;       // by ParameterId: full gradient in reduce dtype
  BufferId waiting_gather_output_;          // of the unit copied out before, in forward
  BufferId reduce_input_;                   // of the reduction in flight
  TaskId last_reduction_;
};

}  // namespace shardplan
