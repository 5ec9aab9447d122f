// What one rank holds across phases: the flat buffers of its units, their states, the constants.
//
// A flat buffer is one tensor for the whole run; only its memory comes and goes (attach, detach). Views of it therefore stay valid
// and are made once. attach asks the device's allocator on the current stream, detach gives the memory back at once, whoever still
// holds the tensor: a collective library may drop its references late. Bytes: exactly what the program's buffers say.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "planner/lowering/lowered_program.h"

namespace shardplan {

struct FlatBuffer {
  at::Tensor flat;  // one-dimensional; undefined when the plan never has it
  bool attached = false;
};

// One group (trainable or frozen) of one unit on this rank. Letters as in docs/schedule_shardplan.md.
struct GroupState {
  FlatBuffer sharded_param;   // U/N, stored dtype
  FlatBuffer gathered_param;  // U, compute dtype; for an aliased group the same tensor as sharded_param
  FlatBuffer full_grad;       // U, reduce dtype
  FlatBuffer sharded_grad;    // U/N, stored dtype
  FlatBuffer exp_avg;         // U/N, state dtype
  FlatBuffer exp_avg_sq;      // U/N, state dtype
  bool aliased = false;       // parameters are views of the stored shard
  [[nodiscard]] const FlatBuffer& gradient() const { return sharded_grad.attached ? sharded_grad : full_grad; }
};

struct RankState {
  at::Device device = at::kCPU;
  std::int32_t shard_index = 0;
  std::vector<std::vector<GroupState>> units;  // by UnitId, then group
  FlatBuffer step_counter;                     // fp32, one element: the number of optimizer steps done
  std::int64_t steps_done = 0;
  FlatBuffer norm_sum;                     // fp64, one element: squares of gradients, summed over ranks
  std::vector<FlatBuffer> constants;       // inverse frequencies, one for each graph storage of role Buffer
  std::vector<float> inverse_frequencies;  // on the host, what Load copies from
  std::int64_t base_bytes = 0;             // level of the memory meter when Load began: not the program's
  CategoryBytes base_by_category;
};

// Tensors of the right sizes and dtypes, without memory. Requires: a graph whose plan this rank runs.
[[nodiscard]] RankState make_rank_state(const Plan& plan, const Lowered& lowered, at::Device device, std::int32_t shard_index);

void attach(FlatBuffer& buffer);
void detach(FlatBuffer& buffer);

// This rank's stretch of a full buffer.
[[nodiscard]] at::Tensor own_stretch(const FlatBuffer& full, std::int64_t stretch_numel, std::int32_t shard_index);

[[nodiscard]] at::ScalarType torch_dtype(DType dtype);

}  // namespace shardplan
