#include "planner/graph/passes/differentiate.h"

#include "core/error.h"
#include "planner/graph/graph_builder.h"

namespace shardplan {
namespace {

class Differentiation {
 public:
  explicit Differentiation(OpGraph& graph)
      : graph_(graph), build_(graph), needs_(graph.values.size(), false), gradient_(graph.values.size()) {}

  void run(ValueId output, ValueId input_requires_grad) {
    mark(input_requires_grad);
    if (!needs_[output.at()]) return;
    seed(output);
    for (std::int64_t i = graph_.num_forward_ops - 1; i >= 0; --i) {
      const Op op = graph_.ops[static_cast<std::size_t>(i)];  // a copy: ops grow below
      if (op.outputs.count == 0) continue;
      const ValueId g = gradient_[op.outputs[0].at()];
      if (!g.is_set()) continue;
      build_.backward_of(OpId(i));
      derive(op, OpId(i), g);
    }
    if (input_requires_grad.is_set()) graph_.input_gradient = gradient_[input_requires_grad.at()];
  }

 private:
  // A value needs a gradient when one leads from it to something that trains.
  void mark(ValueId input_requires_grad) {
    for (std::size_t i = 0; i < graph_.values.size(); ++i) {
      const Storage& storage = graph_.storage(graph_.values[i].storage);
      needs_[i] = storage.role == StorageRole::Parameter && graph_.table.parameters[storage.parameter.at()].trainable;
    }
    if (input_requires_grad.is_set()) needs_[input_requires_grad.at()] = true;
    for (std::int64_t i = 0; i < graph_.num_forward_ops; ++i) {
      const Op& op = graph_.ops[static_cast<std::size_t>(i)];
      bool any = false;
      for (const ValueId input : op.inputs) any = any || needs(input);
      if (!any) continue;
      for (const ValueId output : op.outputs) needs_[output.at()] = is_floating(graph_.value(output).dtype);
    }
  }

  [[nodiscard]] bool needs(ValueId value) const { return value.is_set() && needs_[value.at()]; }

  void seed(ValueId output) {
    const OpId made_by = graph_.storage_of(output).made_by;
    build_.backward_of(made_by);
    if (graph_.value(output).sizes.rank > 0) {
      // A part of a model: the gradient of its result comes from outside.
      gradient_[output.at()] =
          build_.outside(StorageRole::Input, "output gradient", graph_.value(output).dtype, graph_.value(output).sizes);
      return;
    }
    const bool is_mean = graph_.kernels.loss == LossForm::ShiftInLoss;
    gradient_[output.at()] = is_mean ? build_.full(Dims{}, 1.0, DType::F32) : build_.loss_seed();
  }

  void contribute(ValueId x, ValueId g) {
    const Storage& storage = graph_.storage_of(x);
    if (storage.role == StorageRole::Parameter) {
      build_.accumulate_grad(g, storage.parameter);
      return;
    }
    ValueId& known = gradient_[x.at()];
    known = known.is_set() ? build_.binary(OpKind::Add, known, g) : g;
  }

  // Sums a gradient over what was broadcast.
  ValueId reduced_to(const Dims& sizes, ValueId g) {
    const Dims from = build_.sizes(g);
    if (from == sizes) return g;
    if (sizes.rank == 1 && sizes[0] == from[-1]) return build_.sum_leading(g);
    Dims last_kept = from;
    last_kept[-1] = 1;
    CHECK(sizes == last_kept, "a broadcast operand is a vector or a column");
    return build_.reduce_last(OpKind::SumLast, g);
  }

  void derive_product(const Op& op, ValueId g) {
    for (std::int32_t i = 0; i < 2; ++i) {
      if (!needs(op.inputs[i])) continue;
      const ValueId product = build_.binary(OpKind::Mul, g, op.inputs[1 - i]);
      contribute(op.inputs[i], reduced_to(build_.sizes(op.inputs[i]), product));
    }
  }

  void derive_linear(const Op& op, ValueId g) {
    const ValueId x = op.inputs[0], weight = op.inputs[1];
    const Dims sizes = build_.sizes(x);
    const std::int64_t tokens = sizes.numel() / sizes[-1];
    const ValueId g2 = build_.reshape(g, Dims{tokens, build_.sizes(g)[-1]});
    if (needs(weight)) {
      const ValueId x2 = build_.reshape(x, Dims{tokens, sizes[-1]});
      contribute(weight, build_.mm(build_.transpose(g2, 0, 1), x2));
    }
    if (op.inputs.count > 2 && needs(op.inputs[2])) contribute(op.inputs[2], build_.sum_leading(g2));
    if (needs(x)) contribute(x, build_.view(build_.mm(g2, weight), sizes));
  }

  void derive_bmm(const Op& op, ValueId g) {
    const ValueId a = op.inputs[0], b = op.inputs[1];
    if (needs(a)) contribute(a, build_.bmm(g, build_.transpose(b, 1, 2)));
    if (needs(b)) contribute(b, build_.bmm(build_.transpose(a, 1, 2), g));
  }

  void derive_cat(const Op& op, ValueId g) {
    const auto dim = static_cast<std::int32_t>(op.ints[0]);
    std::int64_t start = 0;
    for (const ValueId x : op.inputs) {
      const std::int64_t length = build_.sizes(x)[dim];
      if (needs(x)) contribute(x, build_.slice(g, dim, start, length));
      start += length;
    }
  }

  void derive_expand(const Op& op, ValueId g) {
    const Dims from = build_.sizes(op.inputs[0]), to = build_.sizes(g);
    CHECK(from.rank == to.rank, "a differentiated expand adds no dimension");
    for (std::int32_t dim = 0; dim < to.rank; ++dim) {
      if (from[dim] == to[dim]) continue;
      CHECK(build_.sizes(g) == to, "a differentiated expand widens one dimension");
      g = build_.view(build_.sum(g, dim), from);
    }
    contribute(op.inputs[0], g);
  }

  void derive_power(const Op& op, ValueId g) {
    const ValueId x = op.inputs[0];
    const ValueId lower = op.scalar == 2.0 ? x : build_.with_scalar(OpKind::PowScalar, x, op.scalar - 1.0);
    contribute(x, build_.binary(OpKind::Mul, g, build_.with_scalar(OpKind::MulScalar, lower, op.scalar)));
  }

  // d(x^-1/2) = -1/2 y^3
  void derive_rsqrt(const Op& op, ValueId g) {
    const ValueId half = build_.with_scalar(OpKind::MulScalar, g, -0.5);
    contribute(op.inputs[0], build_.binary(OpKind::Mul, half, build_.with_scalar(OpKind::PowScalar, op.outputs[0], 3.0)));
  }

  void derive_attention(const Op& op, OpId id, ValueId g) {
    const GraphBuilder::AttentionGradients made = build_.attention_backward(g, id);
    if (needs(op.inputs[0])) contribute(op.inputs[0], made.q);
    if (needs(op.inputs[1])) contribute(op.inputs[1], made.k);
    if (needs(op.inputs[2])) contribute(op.inputs[2], made.v);
  }

  // One case per kind that can stand between a loss and a parameter.
  void derive(const Op& op, OpId id, ValueId g) {
    const ValueId x = op.inputs[0];
    switch (op.kind) {
      case OpKind::View:
        contribute(x, build_.reshape(g, build_.sizes(x)));
        return;
      case OpKind::Transpose:
        contribute(x, build_.transpose(g, static_cast<std::int32_t>(op.ints[0]), static_cast<std::int32_t>(op.ints[1])));
        return;
      case OpKind::Slice:
        contribute(x, build_.slice_backward(g, build_.sizes(x), static_cast<std::int32_t>(op.ints[0]), op.ints[1], op.ints[2]));
        return;
      case OpKind::Expand:
        derive_expand(op, g);
        return;
      case OpKind::Clone:
        contribute(x, g);
        return;
      case OpKind::Cast:
        contribute(x, build_.cast(g, build_.value(x).dtype));
        return;
      case OpKind::Cat:
        derive_cat(op, g);
        return;
      case OpKind::ConstantPad:
        contribute(x, build_.clone(build_.slice(g, -1, op.ints[0], build_.sizes(x)[-1])));
        return;
      case OpKind::Add:
        for (const ValueId input : op.inputs) {
          if (needs(input)) contribute(input, reduced_to(build_.sizes(input), g));
        }
        return;
      case OpKind::Mul:
        derive_product(op, g);
        return;
      case OpKind::AddScalar:
        contribute(x, g);
        return;
      case OpKind::MulScalar:
        if (op.inputs.count > 1) {
          contribute(x, build_.times_host_scalar(g, op.scalar, op.inputs[1]));
        } else {
          contribute(x, build_.with_scalar(OpKind::MulScalar, g, op.scalar));
        }
        return;
      case OpKind::DivScalar:
        contribute(x, build_.with_scalar(OpKind::DivScalar, g, op.scalar));
        return;
      case OpKind::PowScalar:
        derive_power(op, g);
        return;
      case OpKind::Neg:
        contribute(x, build_.unary(OpKind::Neg, g));
        return;
      case OpKind::Rsqrt:
        derive_rsqrt(op, g);
        return;
      case OpKind::Silu:
        contribute(x, build_.binary(OpKind::SiluBackward, g, x));
        return;
      case OpKind::MeanLast: {
        const Dims sizes = build_.sizes(x);
        contribute(x, build_.with_scalar(OpKind::DivScalar, build_.expand(g, sizes), static_cast<double>(sizes[-1])));
        return;
      }
      case OpKind::Softmax:
      case OpKind::SafeSoftmax:
        contribute(x, build_.rowwise_backward(OpKind::SoftmaxBackward, g, op.outputs[0], build_.value(x).dtype));
        return;
      case OpKind::LogSoftmax:
        contribute(x, build_.rowwise_backward(OpKind::LogSoftmaxBackward, g, op.outputs[0], build_.value(x).dtype));
        return;
      case OpKind::Linear:
        derive_linear(op, g);
        return;
      case OpKind::Bmm:
        derive_bmm(op, g);
        return;
      case OpKind::Embedding:
        contribute(x, build_.embedding_backward(g, op.inputs[1], build_.sizes(x)[0], op.ints[0]));
        return;
      case OpKind::NllLoss:
        contribute(x, build_.nll_loss_backward(g, op));
        return;
      case OpKind::AttentionCpu:
      case OpKind::AttentionFlash:
      case OpKind::AttentionEfficient:
        derive_attention(op, id, g);
        return;
      case OpKind::Arange:
      case OpKind::Full:
      case OpKind::LossSeed:
      case OpKind::SliceBackward:
      case OpKind::Sub:
      case OpKind::Div:
      case OpKind::Cos:
      case OpKind::Sin:
      case OpKind::LessEqual:
      case OpKind::GreaterThan:
      case OpKind::LogicalAnd:
      case OpKind::LogicalNot:
      case OpKind::MaskedFill:
      case OpKind::SiluBackward:
      case OpKind::SumLast:
      case OpKind::SumLeading:
      case OpKind::Sum:
      case OpKind::SoftmaxBackward:
      case OpKind::Mm:
      case OpKind::EmbeddingDenseBackward:
      case OpKind::LogSoftmaxBackward:
      case OpKind::NllLossBackward:
      case OpKind::AttentionCpuBackward:
      case OpKind::AttentionFlashBackward:
      case OpKind::AttentionEfficientBackward:
      case OpKind::AccumulateGrad:
        break;
    }
    CHECK(false, "an op between loss and parameters has a derivative: " + std::string(op_kind_name(op.kind)));
  }

  OpGraph& graph_;
  GraphBuilder build_;
  std::vector<bool> needs_;        // by forward value
  std::vector<ValueId> gradient_;  // by forward value: the sum of the contributions so far
};

}  // namespace

void differentiate(OpGraph& graph, ValueId loss, ValueId input_requires_grad) {
  CHECK(graph.num_forward_ops == static_cast<std::int64_t>(graph.ops.size()), "a graph is differentiated once");
  Differentiation(graph).run(loss, input_requires_grad);
}

}  // namespace shardplan
