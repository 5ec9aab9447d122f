#include "executor/op_table.h"

#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/_safe_softmax.h>
#include <ATen/ops/_softmax_backward_data.h>
#include <ATen/ops/_to_copy.h>
#include <ATen/ops/add.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/div.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/full.h>
#include <ATen/ops/gt.h>
#include <ATen/ops/le.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/logical_not.h>
#include <ATen/ops/masked_fill.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/nll_loss_backward.h>
#include <ATen/ops/nll_loss_forward.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/slice_backward.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/sum.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <numeric>

#include "core/error.h"
#include "executor/op_table_attention.h"
#include "executor/rank_state.h"

namespace shardplan {
namespace {

constexpr std::int64_t kIgnoredTarget = -100;

at::IntArrayRef array_ref(const Dims& dims) { return {dims.d.data(), static_cast<std::size_t>(dims.rank)}; }

// All dimensions but the last.
std::array<std::int64_t, 6> leading_dims(std::int64_t rank) {
  std::array<std::int64_t, 6> dims{};
  std::iota(dims.begin(), dims.begin() + rank - 1, 0);
  return dims;
}

// A whole number for whole tensors: a fraction would make the result floating.
at::Scalar number_for(const at::Tensor& x, double scalar) {
  if (c10::isIntegralType(x.scalar_type(), /*includeBool=*/false)) return static_cast<std::int64_t>(scalar);
  return scalar;
}

at::Tensor cat_of(const Op& op, std::span<at::Tensor> values) {
  std::array<at::Tensor, 8> parts;
  for (std::int32_t i = 0; i < op.inputs.count; ++i) parts[static_cast<std::size_t>(i)] = values[op.inputs[i].at()];
  return at::cat(at::TensorList(parts.data(), static_cast<std::size_t>(op.inputs.count)), op.ints[0]);
}

}  // namespace

at::Tensor view_of(const at::Tensor& base, const Value& value, std::int64_t base_offset) {
  at::Tensor view =
      at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(base.storage()), base.key_set(), base.dtype());
  view.unsafeGetTensorImpl()->set_sizes_and_strides(array_ref(value.sizes), array_ref(value.strides), base_offset + value.offset);
  return view;
}

void run_op(const OpGraph& graph, const Op& op, std::span<at::Tensor> values, const StepScalars& scalars) {
  const auto in = [&](std::int32_t i) -> const at::Tensor& { return values[op.inputs[i].at()]; };
  const auto out = [&](std::int32_t i) -> at::Tensor& { return values[op.outputs[i].at()]; };
  const auto result = [&]() -> const Value& { return graph.value(op.outputs[0]); };
  const auto options = [&](DType dtype) { return at::TensorOptions(torch_dtype(dtype)).device(scalars.device); };

  switch (op.kind) {
    case OpKind::View:
    case OpKind::Transpose:
    case OpKind::Slice:
    case OpKind::Expand:
      out(0) = view_of(in(0), result(), in(0).storage_offset() - graph.value(op.inputs[0]).offset);
      return;

    case OpKind::Arange:
      out(0) = at::arange(op.ints[0], options(op.dtype));
      return;
    case OpKind::Full:
      out(0) = at::full(array_ref(result().sizes), op.scalar, options(op.dtype));
      return;
    case OpKind::LossSeed:
      out(0) = at::full({}, scalars.loss_seed, options(DType::F32));
      return;

    case OpKind::Clone:
      out(0) = at::clone(in(0), at::MemoryFormat::Contiguous);
      return;
    case OpKind::Cast:
      out(0) = at::_to_copy(in(0), torch_dtype(op.dtype));
      return;
    case OpKind::Cat:
      out(0) = cat_of(op, values);
      return;
    case OpKind::SliceBackward:
      out(0) = at::slice_backward(in(0), array_ref(result().sizes), op.ints[0], op.ints[1], op.ints[1] + op.ints[2], /*step=*/1);
      return;

    case OpKind::Add:
      out(0) = at::add(in(0), in(1));
      return;
    case OpKind::Sub:
      out(0) = at::sub(in(0), in(1));
      return;
    case OpKind::Mul:
      out(0) = at::mul(in(0), in(1));
      return;
    case OpKind::AddScalar:
      out(0) = at::add(in(0), number_for(in(0), op.scalar));
      return;
    case OpKind::MulScalar:
      out(0) = at::mul(in(0), op.scalar);
      return;
    case OpKind::DivScalar:
      out(0) = at::div(in(0), op.scalar);
      return;
    case OpKind::PowScalar:
      out(0) = at::pow(in(0), op.scalar);
      return;
    case OpKind::Div:
      out(0) = at::div(in(0), in(1));
      return;
    case OpKind::Neg:
      out(0) = at::neg(in(0));
      return;
    case OpKind::Rsqrt:
      out(0) = at::rsqrt(in(0));
      return;
    case OpKind::Cos:
      out(0) = at::cos(in(0));
      return;
    case OpKind::Sin:
      out(0) = at::sin(in(0));
      return;
    case OpKind::LessEqual:
      out(0) = at::le(in(0), in(1));
      return;
    case OpKind::GreaterThan:
      out(0) = at::gt(in(0), in(1));
      return;
    case OpKind::LogicalAnd:
      out(0) = at::logical_and(in(0), in(1));
      return;
    case OpKind::LogicalNot:
      out(0) = at::logical_not(in(0));
      return;
    case OpKind::MaskedFill: {
      at::Tensor x = in(0);
      out(0) = op.ints[0] == 1 ? x.masked_fill_(in(1), op.scalar) : at::masked_fill(x, in(1), op.scalar);
      return;
    }
    case OpKind::Silu:
      out(0) = at::silu(in(0));
      return;
    case OpKind::SiluBackward:
      out(0) = at::silu_backward(in(0), in(1));
      return;

    case OpKind::MeanLast:
      out(0) = at::mean(in(0), at::IntArrayRef{-1}, /*keepdim=*/true);
      return;
    case OpKind::SumLast:
      out(0) = at::sum(in(0), at::IntArrayRef{-1}, /*keepdim=*/true);
      return;
    case OpKind::SumLeading: {
      const auto dims = leading_dims(in(0).dim());
      out(0) = at::sum(in(0), at::IntArrayRef(dims.data(), static_cast<std::size_t>(in(0).dim() - 1)), /*keepdim=*/false);
      return;
    }
    case OpKind::Sum:
      out(0) = at::sum(in(0), at::IntArrayRef{op.ints[0]}, /*keepdim=*/false);
      return;
    case OpKind::Softmax:
      out(0) = at::softmax(in(0), -1, torch_dtype(op.dtype));
      return;
    case OpKind::SoftmaxBackward:
      out(0) = at::_softmax_backward_data(in(0), in(1), -1, torch_dtype(result().dtype));
      return;
    case OpKind::SafeSoftmax:
      out(0) = at::_safe_softmax(in(0), -1, torch_dtype(op.dtype));
      return;

    case OpKind::Linear:
      out(0) = op.inputs.count > 2 ? at::linear(in(0), in(1), in(2)) : at::linear(in(0), in(1));
      return;
    case OpKind::Mm:
      out(0) = at::mm(in(0), in(1));
      return;
    case OpKind::Bmm:
      out(0) = at::bmm(in(0), in(1));
      return;

    case OpKind::Embedding:
      out(0) = at::embedding(in(0), in(1), op.ints[0]);
      return;
    case OpKind::EmbeddingDenseBackward:
      out(0) = at::embedding_dense_backward(in(0), in(1), result().sizes[0], op.ints[0], /*scale_grad_by_freq=*/false);
      return;
    case OpKind::LogSoftmax:
      out(0) = at::_log_softmax(in(0), -1, /*half_to_float=*/in(0).scalar_type() != at::kFloat);
      return;
    case OpKind::LogSoftmaxBackward:
      out(0) = at::_log_softmax_backward_data(in(0), in(1), -1, torch_dtype(result().dtype));
      return;
    case OpKind::NllLoss:
      std::tie(out(0), out(1)) = at::nll_loss_forward(in(0), in(1), /*weight=*/{}, op.ints[0], kIgnoredTarget);
      return;
    case OpKind::NllLossBackward:
      out(0) = at::nll_loss_backward(in(0), in(1), in(2), /*weight=*/{}, op.ints[0], kIgnoredTarget, in(3));
      return;
    case OpKind::ConstantPad:
      out(0) = at::constant_pad_nd(in(0), at::IntArrayRef{op.ints[0], op.ints[1]}, op.scalar);
      return;

    case OpKind::AttentionCpu:
      return run_attention_cpu(op, values);
    case OpKind::AttentionCpuBackward:
      return run_attention_cpu_backward(op, values);
    case OpKind::AttentionFlash:
      return run_attention_flash(op, values);
    case OpKind::AttentionFlashBackward:
      return run_attention_flash_backward(op, values);
    case OpKind::AttentionEfficient:
      return run_attention_efficient(op, values);
    case OpKind::AttentionEfficientBackward:
      return run_attention_efficient_backward(op, values);

    case OpKind::AccumulateGrad:
      break;  // the interpreter's: it knows where gradients lie
  }
  CHECK(false, "AccumulateGrad is not an op of the table");
}

void run_op_into(const OpGraph&, const Op& op, std::span<at::Tensor> values, const at::Tensor& out) {
  at::Tensor target = out;
  const at::Tensor& x = values[op.inputs[0].at()];
  CHECK(op.kind == OpKind::Mm || op.kind == OpKind::SumLeading, "only products and sums write their result where they are told");
  if (op.kind == OpKind::Mm) {
    at::mm_out(target, x, values[op.inputs[1].at()]);
  } else {
    const auto dims = leading_dims(x.dim());
    at::sum_out(target, x, at::IntArrayRef(dims.data(), static_cast<std::size_t>(x.dim() - 1)), /*keepdim=*/false);
  }
  values[op.outputs[0].at()] = std::move(target);
}

void require_layout(const OpGraph& graph, const Op& op, std::span<const at::Tensor> values) {
  for (const ValueId id : op.outputs) {
    if (!id.is_set()) continue;
    const Value& value = graph.value(id);
    const at::Tensor& tensor = values[id.at()];
    bool equal = tensor.defined() && tensor.dim() == value.sizes.rank && tensor.scalar_type() == torch_dtype(value.dtype);
    for (std::int32_t d = 0; equal && d < value.sizes.rank; ++d)
      equal = tensor.size(d) == value.sizes[d] && (value.sizes[d] == 1 || tensor.stride(d) == value.strides[d]);
    CHECK(equal, fmt::format("result of {} '{}' lies as the graph says: predicted {} strides {}, made {} strides {}",
                             op_kind_name(op.kind), graph.name_of(op), value.sizes.span(), value.strides.span(),
                             tensor.defined() ? tensor.sizes().vec() : std::vector<std::int64_t>{},
                             tensor.defined() ? tensor.strides().vec() : std::vector<std::int64_t>{}));
  }
}

}  // namespace shardplan
