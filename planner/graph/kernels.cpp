#include "planner/graph/kernels.h"

namespace shardplan {

Kernels kernels_for(DeviceKind device, DType compute, bool grouped_heads, bool has_window) {
  Kernels kernels;
  kernels.device = device;
  if (device == DeviceKind::Cpu) {
    // Takes fewer key/value heads itself, but not together with a mask.
    kernels.attention = AttentionKernel::CpuFlash;
    kernels.grouped_attention = grouped_heads && !has_window;
    return kernels;
  }
  const bool is_16_bit = compute == DType::BF16 || compute == DType::F16;
  // Flash takes 16-bit values and no mask; the efficient kernel takes both, but equal numbers of heads only.
  kernels.attention = is_16_bit && !has_window ? AttentionKernel::CudaFlash : AttentionKernel::CudaEfficient;
  kernels.grouped_attention = grouped_heads && kernels.attention == AttentionKernel::CudaFlash;
  return kernels;
}

}  // namespace shardplan
