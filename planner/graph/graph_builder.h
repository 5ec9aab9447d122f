// Appends ops to a graph: each function is one op, and gives its result the sizes, strides and dtype that ATen gives it.
//
// Family builders and differentiate() write through this alone. Functions named as in PyTorch that may need nothing to be done
// (contiguous, cast, reshape) then return x itself.
// Errors: CHECK when an op does not take these operands.
#pragma once

#include <string_view>
#include <vector>

#include "planner/graph/op_graph.h"

namespace shardplan {

class GraphBuilder {
 public:
  explicit GraphBuilder(OpGraph& graph);

  // What the next ops belong to.
  void at(std::int32_t layer, std::string_view name);
  void backward_of(OpId forward);

  // Values from outside. A parameter is one value however often it is asked for.
  [[nodiscard]] ValueId outside(StorageRole role, std::string_view name, DType dtype, const Dims& sizes);
  [[nodiscard]] ValueId parameter(ParameterId id);

  // Views.
  ValueId view(ValueId x, const Dims& sizes);
  ValueId transpose(ValueId x, std::int32_t dim0, std::int32_t dim1);
  ValueId slice(ValueId x, std::int32_t dim, std::int64_t start, std::int64_t length);
  ValueId expand(ValueId x, const Dims& sizes);

  // Copies, or nothing.
  ValueId reshape(ValueId x, const Dims& sizes);
  ValueId contiguous(ValueId x);
  ValueId cast(ValueId x, DType dtype);
  ValueId clone(ValueId x);
  ValueId cat(ValueId a, ValueId b, std::int32_t dim);
  ValueId slice_backward(ValueId g, const Dims& sizes, std::int32_t dim, std::int64_t start, std::int64_t length);
  ValueId pad_last(ValueId x, std::int64_t left, std::int64_t right, double value);

  ValueId arange(std::int64_t count, DType dtype);
  ValueId full(const Dims& sizes, double value, DType dtype);
  ValueId loss_seed();

  // Pointwise; comparisons give Bool.
  ValueId unary(OpKind kind, ValueId x);
  ValueId binary(OpKind kind, ValueId a, ValueId b);
  ValueId with_scalar(OpKind kind, ValueId x, double scalar);
  ValueId times_host_scalar(ValueId x, double scalar, ValueId host);  // MulScalar that names the host scalar
  ValueId masked_fill_in_place(ValueId x, ValueId mask, double value);

  // Reductions.
  ValueId reduce_last(OpKind kind, ValueId x);  // MeanLast, SumLast
  ValueId sum_leading(ValueId x);
  ValueId sum(ValueId x, std::int32_t dim);
  ValueId rowwise(OpKind kind, ValueId x, DType dtype);                      // Softmax, SafeSoftmax, LogSoftmax
  ValueId rowwise_backward(OpKind kind, ValueId g, ValueId y, DType dtype);  // of those

  // Products.
  ValueId linear(ValueId x, ValueId weight, ValueId bias);
  ValueId mm(ValueId a, ValueId b);
  ValueId bmm(ValueId a, ValueId b);

  // Lookups and loss.
  // `padding`: the row that gets no gradient, -1 for none.
  ValueId embedding(ValueId weight, ValueId ids, std::int64_t padding);
  ValueId embedding_backward(ValueId g, ValueId ids, std::int64_t num_rows, std::int64_t padding);
  struct Loss {
    ValueId loss, total_weight;
  };
  Loss nll_loss(ValueId log_probabilities, ValueId targets, LossForm form);
  ValueId nll_loss_backward(ValueId g, const Op& forward);

  // Fused attention over [B, A, S, D]; an unset mask is none.
  ValueId attention(OpKind kind, ValueId q, ValueId k, ValueId v, ValueId mask, double scale, bool is_causal);
  struct AttentionGradients {
    ValueId q, k, v;
  };
  AttentionGradients attention_backward(ValueId g, OpId forward);

  void accumulate_grad(ValueId g, ParameterId parameter);

  [[nodiscard]] const Value& value(ValueId id) const { return graph_.value(id); }
  [[nodiscard]] const Dims& sizes(ValueId id) const { return graph_.value(id).sizes; }
  [[nodiscard]] OpGraph& graph() { return graph_; }

 private:
  OpId add(OpKind kind, std::initializer_list<ValueId> inputs);
  ValueId result(OpId op, DType dtype, const Dims& sizes, const Dims& strides);
  ValueId result(OpId op, DType dtype, const Dims& sizes);  // contiguous
  ValueId view_result(OpId op, ValueId of, const Dims& sizes, const Dims& strides, std::int64_t offset);
  Op& op(OpId id) { return graph_.ops[id.at()]; }
  std::int32_t intern(std::string_view name);

  OpGraph& graph_;
  std::vector<ValueId> parameters_;
  OpPass pass_ = OpPass::Forward;
  OpId forward_;
  std::int32_t layer_ = -1;
  std::int32_t name_ = -1;
};

}  // namespace shardplan
