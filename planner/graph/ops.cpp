#include "planner/graph/ops.h"

#include <algorithm>

#include "core/units.h"

namespace shardplan {
namespace {

// Elements of a view that are places of their own: broadcast dimensions are read once.
std::int64_t distinct_bytes(const Value& value) {
  std::int64_t n = element_bytes(value.dtype);
  for (std::int32_t i = 0; i < value.sizes.rank; ++i) n *= value.strides[i] == 0 ? 1 : value.sizes[i];
  return n;
}

std::int64_t numel(const OpGraph& graph, ValueId id) { return graph.value(id).sizes.numel(); }

// Scaled dot product attention: two products forward, five backward (scores again, then one for each of dv, dp, dq, dk). A causal
// kernel does the half of the scores that counts.
std::int64_t attention_flops(const OpGraph& graph, const Op& op, std::int64_t num_products) {
  const bool is_backward = num_products > 2;
  const Dims& q = graph.value(op.inputs[is_backward ? 1 : 0]).sizes;
  const Dims& k = graph.value(op.inputs[is_backward ? 2 : 1]).sizes;
  const std::int64_t full = num_products * 2 * q[0] * q[1] * q[2] * k[2] * q[3];
  return op.ints[0] == 1 ? full / 2 : full;
}

// Blocks of PyTorch's CPU flash kernel (aten/src/ATen/native/cpu/FlashAttentionKernel.cpp).
std::int64_t cpu_flash_query_block(std::int64_t seq_len) {
  const std::int64_t block = seq_len >= 768 ? 256 : seq_len >= 192 ? 64 : 32;
  return std::min(block, seq_len);
}
std::int64_t cpu_flash_key_block(std::int64_t seq_len) { return std::min<std::int64_t>(512, seq_len); }

// Per thread fp32: scores, their row maximum and row sum, and the output block.
std::int64_t cpu_flash_forward_scratch(const OpGraph& graph, const Op& op) {
  const Dims& q = graph.value(op.inputs[0]).sizes;
  const std::int64_t rows = cpu_flash_query_block(q[2]), columns = cpu_flash_key_block(graph.value(op.inputs[1]).sizes[2]);
  return graph.kernels.threads * 4 * (rows * columns + 2 * rows + rows * q[3]);
}

// Per thread fp32: scores and their gradient, and a row sum.
std::int64_t cpu_flash_backward_scratch(const OpGraph& graph, const Op& op) {
  const Dims& q = graph.value(op.inputs[1]).sizes;
  const std::int64_t rows = cpu_flash_query_block(q[2]), columns = cpu_flash_key_block(graph.value(op.inputs[2]).sizes[2]);
  return graph.kernels.threads * (8 * rows * columns + 4 * rows);
}

// fp32 sums of the query gradient, row sums, and for grouped heads key and value gradients of every query head. Read in
// aten/src/ATen/native/transformers/cuda/flash_attn/flash_api.cpp (mha_bwd), not measured.
std::int64_t cuda_flash_backward_scratch(const OpGraph& graph, const Op& op) {
  const Dims& q = graph.value(op.inputs[1]).sizes;
  const Dims& k = graph.value(op.inputs[2]).sizes;
  const std::int64_t rows = round_up(q[2], 128), columns = round_up(q[3], q[3] <= 128 ? 32 : 64);
  const std::int64_t accumulators = 4 * q[0] * q[1] * rows * (columns + 1);
  const std::int64_t grouped = q[1] == k[1] ? 0 : 2 * q[0] * q[1] * k[2] * q[3] * element_bytes(graph.value(op.inputs[2]).dtype);
  return accumulators + grouped;
}

// The product of output and its gradient, then its row sums, fp32. Read in cuda/attention_backward.cu, not measured.
std::int64_t cuda_efficient_backward_scratch(const OpGraph& graph, const Op& op) {
  const Dims& q = graph.value(op.inputs[1]).sizes;
  return 4 * q[0] * q[1] * q[2] * (q[3] + 1);
}

// Which elements are -inf, which rows are nothing else, and the number 0 (measured).
std::int64_t safe_softmax_scratch(const OpGraph& graph, const Op& op) {
  const Dims& x = graph.value(op.inputs[0]).sizes;
  return x.numel() + x.numel() / x[-1] + element_bytes(op.dtype);
}

// A number operand becomes a tensor of 8 bytes, then one of the result's dtype where that differs; both live while the kernel runs
// (c10 wrapped numbers, TensorIterator). The mean divides its sum by such a number. Measured; on CUDA numbers stay on the host.
std::int64_t wrapped_number_scratch(DType dtype) {
  constexpr std::int64_t kNumberBytes = 8;
  return kNumberBytes + (dtype == DType::I64 || dtype == DType::F64 ? 0 : element_bytes(dtype));
}

}  // namespace

OpCost op_cost(const OpGraph& graph, OpId id) {
  const Op& op = graph.op(id);
  OpCost cost;
  if (is_view(op.kind)) return cost;
  KernelWork& work = cost.work;
  for (const ValueId input : op.inputs) {
    if (input.is_set() && graph.storage_of(input).role != StorageRole::HostScalar)
      work.read_bytes += distinct_bytes(graph.value(input));
  }
  for (const ValueId output : op.outputs) work.written_bytes += distinct_bytes(graph.value(output));
  const ValueId first = op.inputs.count > 0 ? op.inputs[0] : op.outputs[0];
  work.dtype = graph.value(op.outputs.count > 0 ? op.outputs[0] : first).dtype;
  const std::int64_t results = op.outputs.count > 0 ? numel(graph, op.outputs[0]) : 0;
  const bool on_cpu = graph.kernels.device == DeviceKind::Cpu;
  const bool is_16_bit = work.dtype == DType::BF16 || work.dtype == DType::F16;
  switch (op.kind) {
    case OpKind::View:
    case OpKind::Transpose:
    case OpKind::Slice:
    case OpKind::Expand:
      break;

    case OpKind::Arange:
    case OpKind::Full:
    case OpKind::LossSeed:
    case OpKind::Clone:
    case OpKind::Cast:
    case OpKind::Cat:
    case OpKind::SliceBackward:
    case OpKind::ConstantPad:
    case OpKind::AccumulateGrad:
      work.compute = ComputeClass::Copy;
      break;

    case OpKind::AddScalar:
    case OpKind::MulScalar:
    case OpKind::DivScalar:
      if (on_cpu) cost.scratch_bytes = wrapped_number_scratch(work.dtype);
      [[fallthrough]];
    case OpKind::Add:
    case OpKind::Sub:
    case OpKind::Mul:
    case OpKind::PowScalar:
    case OpKind::Div:
    case OpKind::Neg:
    case OpKind::Rsqrt:
    case OpKind::Cos:
    case OpKind::Sin:
    case OpKind::LessEqual:
    case OpKind::GreaterThan:
    case OpKind::LogicalAnd:
    case OpKind::LogicalNot:
    case OpKind::MaskedFill:
    case OpKind::Silu:
    case OpKind::SiluBackward:
      work.compute = ComputeClass::Elementwise;
      work.flops = results;
      break;

    case OpKind::SafeSoftmax:
      if (on_cpu) cost.scratch_bytes = safe_softmax_scratch(graph, op);
      work.compute = ComputeClass::Reduction;
      work.flops = numel(graph, first);
      break;
    case OpKind::MeanLast:
      if (on_cpu) cost.scratch_bytes = wrapped_number_scratch(work.dtype);
      [[fallthrough]];
    case OpKind::SumLast:
    case OpKind::SumLeading:
    case OpKind::Sum:
    case OpKind::Softmax:
    case OpKind::SoftmaxBackward:
    case OpKind::LogSoftmax:
    case OpKind::LogSoftmaxBackward:
    case OpKind::NllLoss:
    case OpKind::NllLossBackward:
      work.compute = ComputeClass::Reduction;
      work.flops = numel(graph, first);
      break;

    case OpKind::Linear:
      work.compute = ComputeClass::Matmul;
      work.flops = 2 * results * graph.value(op.inputs[1]).sizes[1];
      cost.has_packing_scratch = on_cpu && is_16_bit;
      break;
    case OpKind::Mm:
      work.compute = ComputeClass::Matmul;
      work.flops = 2 * results * graph.value(first).sizes[1];
      cost.has_packing_scratch = on_cpu && is_16_bit;
      break;
    case OpKind::Bmm:
      work.compute = ComputeClass::Matmul;
      work.flops = 2 * results * graph.value(first).sizes[2];
      cost.has_packing_scratch = on_cpu && is_16_bit;
      break;

    case OpKind::Embedding:
      // Only the rows that are looked up.
      work.compute = ComputeClass::Gather;
      work.read_bytes = work.written_bytes + distinct_bytes(graph.value(op.inputs[1]));
      break;
    case OpKind::EmbeddingDenseBackward:
      work.compute = ComputeClass::Gather;
      break;

    case OpKind::AttentionCpu:
      cost.scratch_bytes = cpu_flash_forward_scratch(graph, op);
      cost.has_packing_scratch = is_16_bit;
      [[fallthrough]];
    case OpKind::AttentionFlash:
    case OpKind::AttentionEfficient:
      work.compute = ComputeClass::Attention;
      work.flops = attention_flops(graph, op, 2);
      break;
    case OpKind::AttentionCpuBackward:
      cost.scratch_bytes = cpu_flash_backward_scratch(graph, op);
      cost.has_packing_scratch = is_16_bit;
      [[fallthrough]];
    case OpKind::AttentionFlashBackward:
    case OpKind::AttentionEfficientBackward:
      if (op.kind == OpKind::AttentionFlashBackward) cost.scratch_bytes = cuda_flash_backward_scratch(graph, op);
      if (op.kind == OpKind::AttentionEfficientBackward) cost.scratch_bytes = cuda_efficient_backward_scratch(graph, op);
      work.compute = ComputeClass::Attention;
      work.flops = attention_flops(graph, op, 5);
      break;
  }
  return cost;
}

}  // namespace shardplan
