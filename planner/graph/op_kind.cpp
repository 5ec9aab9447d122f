#include "planner/graph/op_kind.h"

#include "core/error.h"

namespace shardplan {

std::string_view op_kind_name(OpKind kind) {
  switch (kind) {
    case OpKind::View:
      return "view";
    case OpKind::Transpose:
      return "transpose";
    case OpKind::Slice:
      return "slice";
    case OpKind::Expand:
      return "expand";
    case OpKind::Arange:
      return "arange";
    case OpKind::Full:
      return "full";
    case OpKind::LossSeed:
      return "loss_seed";
    case OpKind::Clone:
      return "clone";
    case OpKind::Cast:
      return "cast";
    case OpKind::Cat:
      return "cat";
    case OpKind::SliceBackward:
      return "slice_backward";
    case OpKind::Add:
      return "add";
    case OpKind::Sub:
      return "sub";
    case OpKind::Mul:
      return "mul";
    case OpKind::AddScalar:
      return "add_scalar";
    case OpKind::MulScalar:
      return "mul_scalar";
    case OpKind::DivScalar:
      return "div_scalar";
    case OpKind::PowScalar:
      return "pow_scalar";
    case OpKind::Div:
      return "div";
    case OpKind::Neg:
      return "neg";
    case OpKind::Rsqrt:
      return "rsqrt";
    case OpKind::Cos:
      return "cos";
    case OpKind::Sin:
      return "sin";
    case OpKind::LessEqual:
      return "less_equal";
    case OpKind::GreaterThan:
      return "greater_than";
    case OpKind::LogicalAnd:
      return "logical_and";
    case OpKind::LogicalNot:
      return "logical_not";
    case OpKind::MaskedFill:
      return "masked_fill";
    case OpKind::Silu:
      return "silu";
    case OpKind::SiluBackward:
      return "silu_backward";
    case OpKind::MeanLast:
      return "mean_last";
    case OpKind::SumLast:
      return "sum_last";
    case OpKind::SumLeading:
      return "sum_leading";
    case OpKind::Sum:
      return "sum";
    case OpKind::Softmax:
      return "softmax";
    case OpKind::SoftmaxBackward:
      return "softmax_backward";
    case OpKind::SafeSoftmax:
      return "safe_softmax";
    case OpKind::Linear:
      return "linear";
    case OpKind::Mm:
      return "mm";
    case OpKind::Bmm:
      return "bmm";
    case OpKind::Embedding:
      return "embedding";
    case OpKind::EmbeddingDenseBackward:
      return "embedding_dense_backward";
    case OpKind::LogSoftmax:
      return "log_softmax";
    case OpKind::LogSoftmaxBackward:
      return "log_softmax_backward";
    case OpKind::NllLoss:
      return "nll_loss";
    case OpKind::NllLossBackward:
      return "nll_loss_backward";
    case OpKind::ConstantPad:
      return "constant_pad";
    case OpKind::AttentionCpu:
      return "attention_cpu";
    case OpKind::AttentionCpuBackward:
      return "attention_cpu_backward";
    case OpKind::AttentionFlash:
      return "attention_flash";
    case OpKind::AttentionFlashBackward:
      return "attention_flash_backward";
    case OpKind::AttentionEfficient:
      return "attention_efficient";
    case OpKind::AttentionEfficientBackward:
      return "attention_efficient_backward";
    case OpKind::AccumulateGrad:
      return "accumulate_grad";
  }
  CHECK(false, "every op kind has a name");
}

bool is_view(OpKind kind) {
  return kind == OpKind::View || kind == OpKind::Transpose || kind == OpKind::Slice || kind == OpKind::Expand;
}

}  // namespace shardplan
