// The kernels of transformers' modelling code on CUDA: which one scaled_dot_product_attention takes, what is copied before it, how
// labels become a loss.
//
// One choice for the whole model; layers with a mask (a sliding window within the sequence, a padding mask) are served as
// families/attention.h says.
// Source: transformers 5.24; PyTorch 2.11 with its default order (flash, memory-efficient, math).
#pragma once

#include <cstdint>

#include "planner/graph/kernels.h"
#include "planner/graph/model_spec.h"

namespace shardplan {

struct StockCall {
  DType compute = DType::BF16;
  bool is_eager = false;          // attn_implementation "eager"
  bool has_padding_mask = false;  // a 2-D mask is passed
  std::int64_t seq_len = 1;
};

[[nodiscard]] Kernels stock_kernels(const ModelSpec& model, const StockCall& call);

}  // namespace shardplan
