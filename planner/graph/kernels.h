// Which kernel an operation uses: a value, chosen once from device and modelled code, never guessed inside a formula.
//
// Source: PyTorch 2.11 dispatch rules of scaled_dot_product_attention; transformers 5.24 modelling code.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "core/hardware_spec.h"

namespace shardplan {

enum class AttentionKernel : std::uint8_t {
  CpuFlash,       // _scaled_dot_product_flash_attention_for_cpu
  CudaFlash,      // _scaled_dot_product_flash_attention
  CudaEfficient,  // _scaled_dot_product_efficient_attention
  Math,           // _scaled_dot_product_attention_math, composed of single calls
  Eager,          // written out in the model code: matmul, add mask, fp32 softmax, matmul
};

// How labels become targets and logits a loss.
enum class LossForm : std::uint8_t {
  TargetsGiven,  // targets come shifted with the data; sum of cross entropies, gradient starts at 1/N (ours)
  ShiftInLoss,   // labels padded, shifted and copied inside the loss; mean (transformers)
};

struct Kernels {
  DeviceKind device = DeviceKind::Cuda;
  AttentionKernel attention = AttentionKernel::CudaFlash;
  LossForm loss = LossForm::TargetsGiven;
  bool grouped_attention = true;  // kernel takes fewer key/value heads; otherwise they are repeated first
  bool padding_mask = false;      // a mask of ones is passed and materialised (stock code only)
  bool mask_per_layer = false;    // every layer makes its own additive mask (stock code); false: one for all layers of a window
  std::int32_t threads = 1;       // CPU only: scratch of the attention kernel grows with it
  bool operator==(const Kernels&) const = default;
};

// What our own runtime uses: CPU flash on CPU; on CUDA flash for 16-bit, efficient for fp32. A layer whose sliding window is
// shorter than the sequence gets an additive mask and, on CUDA, the efficient kernel.
[[nodiscard]] Kernels kernels_for(DeviceKind device, DType compute, bool grouped_heads);

}  // namespace shardplan
