#include "planner/graph/stock_kernels.h"

#include <algorithm>

namespace shardplan {

Kernels stock_kernels(const ModelSpec& model, const StockCall& call) {
  Kernels kernels;
  kernels.loss = LossForm::ShiftInLoss;
  kernels.padding_mask = call.has_padding_mask;
  if (call.is_eager) {
    kernels.attention = AttentionKernel::Eager;
    kernels.grouped_attention = false;
    return kernels;
  }
  kernels.mask_per_layer = true;
  const bool is_16_bit = call.compute != DType::F32;
  const bool is_grouped = model.num_heads != model.num_kv_heads;
  const bool every_layer_has_mask =
      call.has_padding_mask ||
      (!model.sliding_window.empty() && std::all_of(model.sliding_window.begin(), model.sliding_window.end(),
                                                    [&](std::int64_t window) { return window > 0 && window <= call.seq_len; }));
  const bool repeats_first = every_layer_has_mask || model.head_dim > 256;
  kernels.grouped_attention = is_grouped && !repeats_first;
  if (is_16_bit && !every_layer_has_mask && model.head_dim <= 256) {
    kernels.attention = AttentionKernel::CudaFlash;
  } else if ((!is_grouped || repeats_first) && model.head_dim % (is_16_bit ? 8 : 4) == 0) {
    kernels.attention = AttentionKernel::CudaEfficient;
  } else {
    kernels.attention = AttentionKernel::Math;
  }
  return kernels;
}

}  // namespace shardplan
