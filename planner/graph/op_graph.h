// The model as operations on strided values: forward ops in execution order, then backward ops in theirs.
//
// An op is one ATen call. A value is a strided view of a storage; a storage is one allocation and becomes one buffer of the program
// (several, if it is recomputed). View ops make values without a kernel. Sizes are concrete: one graph is for one batch shape.
// Parameters appear in compute dtype, as gathered. Backward ops are appended by differentiate(); an AccumulateGrad op hands one
// contribution to a parameter's gradient.
//
// Shapes: B batch, S sequence, T = B*S tokens, H hidden, I MLP size, V vocabulary, A heads, K kv heads, D head size.
// Errors: CHECK when an op is built with operands it cannot take.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/ids.h"
#include "planner/graph/kernels.h"
#include "planner/graph/op_kind.h"
#include "planner/graph/parameter_table.h"

namespace shardplan {

// Up to six dimensions, without heap.
struct Dims {
  std::array<std::int64_t, 6> d{};
  std::int32_t rank = 0;

  Dims() = default;
  Dims(std::initializer_list<std::int64_t> list);
  [[nodiscard]] std::int64_t operator[](std::int32_t i) const { return d[static_cast<std::size_t>(i < 0 ? i + rank : i)]; }
  [[nodiscard]] std::int64_t& operator[](std::int32_t i) { return d[static_cast<std::size_t>(i < 0 ? i + rank : i)]; }
  [[nodiscard]] std::int64_t numel() const;
  [[nodiscard]] std::span<const std::int64_t> span() const { return {d.data(), static_cast<std::size_t>(rank)}; }
  bool operator==(const Dims&) const = default;
};

enum class StorageRole : std::uint8_t {
  Activation,  // made by an op, forward
  Gradient,    // made by an op, backward
  Input,       // ids, targets: from outside, per micro-step
  Parameter,   // gathered parameter: lives in its unit's flat buffer
  Buffer,      // recomputed constants: inverse frequencies
  HostScalar,  // a number on the host; no device memory
};

struct Storage {
  StorageRole role = StorageRole::Activation;
  std::int64_t bytes = 0;
  ParameterId parameter;   // role Parameter
  std::int32_t name = -1;  // index into OpGraph::names: "ids", "targets", "inv_freq", or of the op that made it
  OpId made_by;            // unset for Input, Parameter, Buffer
};

struct Value {
  StorageId storage;
  DType dtype = DType::F32;
  Dims sizes;
  Dims strides;             // in elements
  std::int64_t offset = 0;  // in elements
};

enum class OpPass : std::uint8_t { Forward, Backward };

// A few operands without heap.
template <class T, int N>
struct Few {
  std::array<T, N> item{};
  std::int32_t count = 0;
  void push(T value) { item[static_cast<std::size_t>(count++)] = value; }
  [[nodiscard]] T operator[](std::int32_t i) const { return item[static_cast<std::size_t>(i)]; }
  [[nodiscard]] const T* begin() const { return item.data(); }
  [[nodiscard]] const T* end() const { return item.data() + count; }
};

struct Op {
  OpKind kind = OpKind::View;
  OpPass pass = OpPass::Forward;
  Few<ValueId, 9> inputs;  // an unset id is an absent optional operand
  Few<ValueId, 4> outputs;
  double scalar = 0;                   // AddScalar, MulScalar, PowScalar, attention scale, ...
  std::array<std::int64_t, 4> ints{};  // dims, slice bounds, flags: see op_kind.h
  DType dtype = DType::F32;            // Cast, Arange, Full: result dtype
  ParameterId parameter;               // AccumulateGrad
  OpId forward;                        // backward ops: the forward op they belong to
  SegmentId segment;                   // set by find_segments
  std::int32_t layer = -1;             // decoder layer, -1 outside
  std::int32_t name = -1;              // index into names: "mlp.gate_proj", "input_layernorm"
};

struct OpGraph {
  std::vector<Op> ops;  // forward ops, then backward ops; both in execution order
  std::vector<Value> values;
  std::vector<Storage> storages;
  std::vector<std::string> names;
  ParameterTable table;
  Kernels kernels;
  std::int64_t micro_batch = 1;  // B
  std::int64_t seq_len = 1;      // S
  DType compute = DType::BF16;
  std::int64_t num_forward_ops = 0;
  ValueId ids, targets;    // [B, S] int64
  ValueId loss;            // scalar fp32
  ValueId logits;          // [B, S, V] compute dtype
  ValueId input_gradient;  // of a part of a model whose input needs one; else unset

  [[nodiscard]] const Op& op(OpId id) const { return ops[id.at()]; }
  [[nodiscard]] const Value& value(ValueId id) const { return values[id.at()]; }
  [[nodiscard]] const Storage& storage(StorageId id) const { return storages[id.at()]; }
  [[nodiscard]] const Storage& storage_of(ValueId id) const { return storages[values[id.at()].storage.at()]; }
  [[nodiscard]] std::string_view name_of(const Op& op) const {
    return op.name < 0 ? std::string_view{} : names[static_cast<std::size_t>(op.name)];
  }
};

[[nodiscard]] bool is_contiguous(const Value& value);

// What a graph is built for.
struct GraphRequest {
  ModelSpec model;
  ParameterTable table;  // with the trainable selection applied
  std::int64_t micro_batch = 1;
  std::int64_t seq_len = 1;
  DType compute = DType::BF16;
  Kernels kernels;
};

// Builder of the family -> differentiate -> prune -> find_segments: the whole chain, ready for lowering.
[[nodiscard]] OpGraph build_graph(const GraphRequest& request);

// Forward only: what the family's builder emits. build_graph and tests call it.
[[nodiscard]] OpGraph build_forward(const GraphRequest& request);

}  // namespace shardplan
