#include "planner/graph/graph_builder.h"

#include <array>

#include "core/error.h"
#include "core/units.h"
#include "planner/graph/strides.h"

namespace shardplan {

GraphBuilder::GraphBuilder(OpGraph& graph) : graph_(graph), parameters_(graph.table.parameters.size()) {}

std::int32_t GraphBuilder::intern(std::string_view name) {
  for (std::size_t i = 0; i < graph_.names.size(); ++i) {
    if (graph_.names[i] == name) return static_cast<std::int32_t>(i);
  }
  graph_.names.emplace_back(name);
  return static_cast<std::int32_t>(graph_.names.size()) - 1;
}

void GraphBuilder::at(std::int32_t layer, std::string_view name) {
  layer_ = layer;
  name_ = intern(name);
}

void GraphBuilder::backward_of(OpId forward) {
  pass_ = OpPass::Backward;
  forward_ = forward;
  layer_ = graph_.op(forward).layer;
  name_ = graph_.op(forward).name;
}

OpId GraphBuilder::add(OpKind kind, std::initializer_list<ValueId> inputs) {
  const OpId id(static_cast<std::int64_t>(graph_.ops.size()));
  Op& made = graph_.ops.emplace_back();
  made.kind = kind;
  made.pass = pass_;
  made.forward = pass_ == OpPass::Backward ? forward_ : OpId{};
  made.layer = layer_;
  made.name = name_;
  for (const ValueId input : inputs) made.inputs.push(input);
  return id;
}

ValueId GraphBuilder::result(OpId op_id, DType dtype, const Dims& sizes, const Dims& strides) {
  const StorageId storage(static_cast<std::int64_t>(graph_.storages.size()));
  Storage& made = graph_.storages.emplace_back();
  made.role = pass_ == OpPass::Forward ? StorageRole::Activation : StorageRole::Gradient;
  made.bytes = sizes.numel() * element_bytes(dtype);
  made.name = name_;
  made.made_by = op_id;
  const ValueId value(static_cast<std::int64_t>(graph_.values.size()));
  graph_.values.push_back(Value{storage, dtype, sizes, strides, 0});
  op(op_id).outputs.push(value);
  return value;
}

ValueId GraphBuilder::result(OpId op_id, DType dtype, const Dims& sizes) {
  return result(op_id, dtype, sizes, contiguous_strides(sizes));
}

ValueId GraphBuilder::view_result(OpId op_id, ValueId of, const Dims& sizes, const Dims& strides, std::int64_t offset) {
  const ValueId value(static_cast<std::int64_t>(graph_.values.size()));
  graph_.values.push_back(Value{graph_.value(of).storage, graph_.value(of).dtype, sizes, strides, offset});
  op(op_id).outputs.push(value);
  return value;
}

ValueId GraphBuilder::outside(StorageRole role, std::string_view name, DType dtype, const Dims& sizes) {
  const StorageId storage(static_cast<std::int64_t>(graph_.storages.size()));
  Storage& made = graph_.storages.emplace_back();
  made.role = role;
  made.bytes = sizes.numel() * element_bytes(dtype);
  made.name = intern(name);
  const ValueId value(static_cast<std::int64_t>(graph_.values.size()));
  graph_.values.push_back(Value{storage, dtype, sizes, contiguous_strides(sizes), 0});
  return value;
}

ValueId GraphBuilder::parameter(ParameterId id) {
  ValueId& known = parameters_[id.at()];
  if (known.is_set()) return known;
  const Parameter& parameter = graph_.table.parameters[id.at()];
  Dims sizes;
  for (const std::int64_t size : parameter.shape) sizes.d[static_cast<std::size_t>(sizes.rank++)] = size;
  const StorageId storage(static_cast<std::int64_t>(graph_.storages.size()));
  Storage& made = graph_.storages.emplace_back();
  made.role = StorageRole::Parameter;
  made.bytes = sizes.numel() * element_bytes(graph_.compute);
  made.parameter = id;
  made.name = name_;
  known = ValueId(static_cast<std::int64_t>(graph_.values.size()));
  graph_.values.push_back(Value{storage, graph_.compute, sizes, contiguous_strides(sizes), 0});
  return known;
}

// --- views ---

ValueId GraphBuilder::view(ValueId x, const Dims& sizes) {
  if (value(x).sizes == sizes) return x;
  const std::optional<Dims> strides = view_strides(value(x), sizes);
  CHECK(strides.has_value(), "a view needs no copy");
  return view_result(add(OpKind::View, {x}), x, sizes, *strides, value(x).offset);
}

ValueId GraphBuilder::transpose(ValueId x, std::int32_t dim0, std::int32_t dim1) {
  Dims sizes = value(x).sizes, strides = value(x).strides;
  std::swap(sizes[dim0], sizes[dim1]);
  std::swap(strides[dim0], strides[dim1]);
  const OpId id = add(OpKind::Transpose, {x});
  op(id).ints = {dim0, dim1};
  return view_result(id, x, sizes, strides, value(x).offset);
}

ValueId GraphBuilder::slice(ValueId x, std::int32_t dim, std::int64_t start, std::int64_t length) {
  CHECK(start >= 0 && start + length <= value(x).sizes[dim], "a slice lies inside its dimension");
  Dims sizes = value(x).sizes;
  sizes[dim] = length;
  const OpId id = add(OpKind::Slice, {x});
  op(id).ints = {dim < 0 ? dim + sizes.rank : dim, start, length};
  return view_result(id, x, sizes, value(x).strides, value(x).offset + start * value(x).strides[dim]);
}

ValueId GraphBuilder::expand(ValueId x, const Dims& sizes) {
  if (value(x).sizes == sizes) return x;
  const Dims& from = value(x).sizes;
  Dims strides;
  strides.rank = sizes.rank;
  const std::int32_t added = sizes.rank - from.rank;
  CHECK(added >= 0, "an expanded value has at least the dimensions it had");
  for (std::int32_t i = 0; i < from.rank; ++i) {
    CHECK(from[i] == 1 || from[i] == sizes[i + added], "only dimensions of size 1 expand");
    strides[i + added] = from[i] == sizes[i + added] ? value(x).strides[i] : 0;
  }
  return view_result(add(OpKind::Expand, {x}), x, sizes, strides, value(x).offset);
}

// --- copies ---

ValueId GraphBuilder::reshape(ValueId x, const Dims& sizes) {
  return view_strides(value(x), sizes) ? view(x, sizes) : view(clone(x), sizes);
}

ValueId GraphBuilder::contiguous(ValueId x) { return is_contiguous(value(x)) ? x : clone(x); }

ValueId GraphBuilder::clone(ValueId x) { return result(add(OpKind::Clone, {x}), value(x).dtype, value(x).sizes); }

ValueId GraphBuilder::cast(ValueId x, DType dtype) {
  const Value from = value(x);
  if (from.dtype == dtype) return x;
  const OpId id = add(OpKind::Cast, {x});
  op(id).dtype = dtype;
  const Value* const operands[] = {&from};
  const Dims strides = is_dense(from.sizes, from.strides) ? from.strides : pointwise_strides(from.sizes, operands);
  return result(id, dtype, from.sizes, strides);
}

ValueId GraphBuilder::cat(ValueId a, ValueId b, std::int32_t dim) {
  Dims sizes = value(a).sizes;
  sizes[dim] += value(b).sizes[dim];
  const OpId id = add(OpKind::Cat, {a, b});
  op(id).ints = {dim < 0 ? dim + sizes.rank : dim};
  return result(id, value(a).dtype, sizes);
}

ValueId GraphBuilder::slice_backward(ValueId g, const Dims& sizes, std::int32_t dim, std::int64_t start, std::int64_t length) {
  const OpId id = add(OpKind::SliceBackward, {g});
  op(id).ints = {dim, start, length};
  return result(id, value(g).dtype, sizes);
}

ValueId GraphBuilder::pad_last(ValueId x, std::int64_t left, std::int64_t right, double fill) {
  Dims sizes = value(x).sizes;
  sizes[-1] += left + right;
  const OpId id = add(OpKind::ConstantPad, {x});
  op(id).ints = {left, right};
  op(id).scalar = fill;
  return result(id, value(x).dtype, sizes);
}

// --- makers ---

ValueId GraphBuilder::arange(std::int64_t count, DType dtype) {
  const OpId id = add(OpKind::Arange, {});
  op(id).ints = {count};
  op(id).dtype = dtype;
  return result(id, dtype, Dims{count});
}

ValueId GraphBuilder::full(const Dims& sizes, double fill, DType dtype) {
  const OpId id = add(OpKind::Full, {});
  op(id).scalar = fill;
  op(id).dtype = dtype;
  return result(id, dtype, sizes);
}

ValueId GraphBuilder::loss_seed() {
  const OpId id = add(OpKind::LossSeed, {});
  op(id).dtype = DType::F32;
  return result(id, DType::F32, Dims{});
}

// --- pointwise ---

namespace {

bool gives_bool(OpKind kind) {
  return kind == OpKind::LessEqual || kind == OpKind::GreaterThan || kind == OpKind::LogicalAnd || kind == OpKind::LogicalNot;
}

}  // namespace

ValueId GraphBuilder::unary(OpKind kind, ValueId x) {
  const Value from = value(x);
  const Value* const operands[] = {&from};
  return result(add(kind, {x}), gives_bool(kind) ? DType::Bool : from.dtype, from.sizes, pointwise_strides(from.sizes, operands));
}

ValueId GraphBuilder::binary(OpKind kind, ValueId a, ValueId b) {
  CHECK(value(a).dtype == value(b).dtype, "operands of a pointwise op have one dtype");
  const Value* const operands[] = {&value(a), &value(b)};
  const Dims sizes = broadcast_sizes(operands);
  const Dims strides = pointwise_strides(sizes, operands);
  const DType dtype = gives_bool(kind) ? DType::Bool : value(a).dtype;
  return result(add(kind, {a, b}), dtype, sizes, strides);
}

ValueId GraphBuilder::with_scalar(OpKind kind, ValueId x, double scalar) {
  const ValueId made = unary(kind, x);
  graph_.ops.back().scalar = scalar;
  return made;
}

ValueId GraphBuilder::times_host_scalar(ValueId x, double scalar, ValueId host) {
  const ValueId made = with_scalar(OpKind::MulScalar, x, scalar);
  graph_.ops.back().inputs.push(host);
  return made;
}

ValueId GraphBuilder::masked_fill_in_place(ValueId x, ValueId mask, double fill) {
  CHECK(value(mask).dtype == DType::Bool, "a mask is boolean");
  const OpId id = add(OpKind::MaskedFill, {x, mask});
  op(id).scalar = fill;
  op(id).ints = {1};
  return view_result(id, x, value(x).sizes, value(x).strides, value(x).offset);
}

// --- reductions ---

ValueId GraphBuilder::reduce_last(OpKind kind, ValueId x) {
  Dims sizes = value(x).sizes;
  sizes[-1] = 1;
  return result(add(kind, {x}), value(x).dtype, sizes);
}

ValueId GraphBuilder::sum_leading(ValueId x) {
  return result(add(OpKind::SumLeading, {x}), value(x).dtype, Dims{value(x).sizes[-1]});
}

ValueId GraphBuilder::sum(ValueId x, std::int32_t dim) {
  const Dims from = value(x).sizes;
  Dims sizes;
  for (std::int32_t i = 0; i < from.rank; ++i) {
    if (i != dim) sizes.d[static_cast<std::size_t>(sizes.rank++)] = from[i];
  }
  const OpId id = add(OpKind::Sum, {x});
  op(id).ints = {dim};
  return result(id, value(x).dtype, sizes);
}

ValueId GraphBuilder::rowwise(OpKind kind, ValueId x, DType dtype) {
  const OpId id = add(kind, {x});
  op(id).dtype = dtype;
  return result(id, dtype, value(x).sizes);
}

ValueId GraphBuilder::rowwise_backward(OpKind kind, ValueId g, ValueId y, DType dtype) {
  const OpId id = add(kind, {g, y});
  op(id).dtype = dtype;
  return result(id, dtype, value(y).sizes);
}

// --- products ---

ValueId GraphBuilder::linear(ValueId x, ValueId weight, ValueId bias) {
  CHECK(value(weight).sizes.rank == 2 && value(x).sizes[-1] == value(weight).sizes[1],
        "a linear layer takes vectors of its input size");
  Dims sizes = value(x).sizes;
  sizes[-1] = value(weight).sizes[0];
  const OpId id = bias.is_set() ? add(OpKind::Linear, {x, weight, bias}) : add(OpKind::Linear, {x, weight});
  return result(id, value(x).dtype, sizes);
}

ValueId GraphBuilder::mm(ValueId a, ValueId b) {
  CHECK(value(a).sizes.rank == 2 && value(b).sizes.rank == 2 && value(a).sizes[1] == value(b).sizes[0],
        "inner sizes of a product agree");
  return result(add(OpKind::Mm, {a, b}), value(a).dtype, Dims{value(a).sizes[0], value(b).sizes[1]});
}

ValueId GraphBuilder::bmm(ValueId a, ValueId b) {
  CHECK(value(a).sizes.rank == 3 && value(b).sizes.rank == 3 && value(a).sizes[2] == value(b).sizes[1] &&
            value(a).sizes[0] == value(b).sizes[0],
        "inner sizes of a batched product agree");
  return result(add(OpKind::Bmm, {a, b}), value(a).dtype, Dims{value(a).sizes[0], value(a).sizes[1], value(b).sizes[2]});
}

// --- lookups and loss ---

ValueId GraphBuilder::embedding(ValueId weight, ValueId ids, std::int64_t padding) {
  Dims sizes = value(ids).sizes;
  sizes.d[static_cast<std::size_t>(sizes.rank++)] = value(weight).sizes[1];
  const OpId id = add(OpKind::Embedding, {weight, ids});
  op(id).ints = {padding};
  return result(id, value(weight).dtype, sizes);
}

ValueId GraphBuilder::embedding_backward(ValueId g, ValueId ids, std::int64_t num_rows, std::int64_t padding) {
  const OpId id = add(OpKind::EmbeddingDenseBackward, {g, ids});
  op(id).ints = {padding};
  return result(id, value(g).dtype, Dims{num_rows, value(g).sizes[-1]});
}

GraphBuilder::Loss GraphBuilder::nll_loss(ValueId log_probabilities, ValueId targets, LossForm form) {
  const OpId id = add(OpKind::NllLoss, {log_probabilities, targets});
  op(id).ints = {form == LossForm::ShiftInLoss ? 1 : 2};
  const ValueId loss = result(id, DType::F32, Dims{});
  return {loss, result(id, DType::F32, Dims{})};
}

ValueId GraphBuilder::nll_loss_backward(ValueId g, const Op& forward) {
  const ValueId log_probabilities = forward.inputs[0], targets = forward.inputs[1], total_weight = forward.outputs[1];
  const std::int64_t reduction = forward.ints[0];
  const OpId id = add(OpKind::NllLossBackward, {g, log_probabilities, targets, total_weight});
  op(id).ints = {reduction};
  return result(id, value(log_probabilities).dtype, value(log_probabilities).sizes);
}

// --- attention ---

namespace {

// [B, A, S, D] that lies in memory as [B, S, A, D].
Dims strides_with_heads_inside(const Dims& sizes) {
  const std::int64_t a = sizes[1], s = sizes[2], d = sizes[3];
  return Dims{s * a * d, d, a * d, 1};
}

}  // namespace

ValueId GraphBuilder::attention(OpKind kind, ValueId q, ValueId k, ValueId v, ValueId mask, double scale, bool is_causal) {
  const OpId id = mask.is_set() ? add(kind, {q, k, v, mask}) : add(kind, {q, k, v});
  op(id).scalar = scale;
  op(id).ints = {is_causal ? 1 : 0};
  const Dims sizes = value(q).sizes;
  const std::int64_t b = sizes[0], a = sizes[1], s = sizes[2];
  const ValueId out = result(id, value(q).dtype, sizes, strides_with_heads_inside(sizes));
  if (kind == OpKind::AttentionCpu) {
    result(id, DType::F32, Dims{b, a, s}, Dims{s * a, 1, a});  // logsumexp
  } else if (kind == OpKind::AttentionFlash) {
    result(id, DType::F32, Dims{b, a, s});  // logsumexp
    result(id, DType::U64, Dims{2});        // random state
    result(id, DType::U64, Dims{});         // unused
  } else {
    CHECK(kind == OpKind::AttentionEfficient, "a fused attention kernel");
    result(id, DType::F32, Dims{b, a, round_up(s, 32)});  // logsumexp, padded
    result(id, DType::I64, Dims{});                       // seed
    result(id, DType::I64, Dims{});                       // offset
  }
  return out;
}

GraphBuilder::AttentionGradients GraphBuilder::attention_backward(ValueId g, OpId forward_id) {
  const Op forward = graph_.op(forward_id);
  OpKind kind = OpKind::AttentionCpuBackward;
  if (forward.kind == OpKind::AttentionFlash) kind = OpKind::AttentionFlashBackward;
  if (forward.kind == OpKind::AttentionEfficient) kind = OpKind::AttentionEfficientBackward;
  const ValueId q = forward.inputs[0], k = forward.inputs[1], v = forward.inputs[2];
  const ValueId mask = forward.inputs.count > 3 ? forward.inputs[3] : ValueId{};
  const OpId id = add(kind, {g, q, k, v, forward.outputs[0], forward.outputs[1]});
  if (kind == OpKind::AttentionCpuBackward) {
    if (mask.is_set()) op(id).inputs.push(mask);
  } else if (kind == OpKind::AttentionFlashBackward) {
    op(id).inputs.push(forward.outputs[2]);
    op(id).inputs.push(forward.outputs[3]);
  } else {
    op(id).inputs.push(forward.outputs[2]);
    op(id).inputs.push(forward.outputs[3]);
    if (mask.is_set()) op(id).inputs.push(mask);
  }
  op(id).scalar = forward.scalar;
  op(id).ints = forward.ints;
  const auto like = [&](ValueId x) {
    return result(id, value(x).dtype, value(x).sizes, strides_with_heads_inside(value(x).sizes));
  };
  const ValueId gq = like(q), gk = like(k), gv = like(v);
  return {gq, gk, gv};
}

void GraphBuilder::accumulate_grad(ValueId g, ParameterId parameter) {
  const OpId id = add(OpKind::AccumulateGrad, {g});
  op(id).parameter = parameter;
}

}  // namespace shardplan
