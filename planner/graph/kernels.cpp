#include "planner/graph/kernels.h"

namespace shardplan {

Kernels kernels_for(DeviceKind device, DType compute, bool grouped_heads) {
  Kernels kernels;
  kernels.device = device;
  // Of a layer with a mask: keys and values are repeated, and on CUDA the efficient kernel takes the place of flash.
  if (device == DeviceKind::Cpu) {
    kernels.attention = AttentionKernel::CpuFlash;
    kernels.grouped_attention = grouped_heads;
    return kernels;
  }
  // Flash works on 16-bit values and takes fewer key/value heads; the efficient kernel works on all, with equal numbers of heads.
  const bool is_16_bit = compute == DType::BF16 || compute == DType::F16;
  kernels.attention = is_16_bit ? AttentionKernel::CudaFlash : AttentionKernel::CudaEfficient;
  kernels.grouped_attention = grouped_heads && is_16_bit;
  return kernels;
}

}  // namespace shardplan
