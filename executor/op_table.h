// The only place that computes: one row for each OpKind, each one ATen call.
//
// A row reads the tensors of the op's input values and makes those of its output values; results are new tensors whose sizes,
// strides and dtype are the graph's (require_layout checks). Views share their operand's storage and are made without a dispatch.
// Backward ops are ordinary rows: no autograd graph is built (the caller holds c10::InferenceMode). Tests run the forward rows with
// gradients required and let autograd judge the backward ones.
//
// Device-neutral: a row never asks where its operands live. Bytes: results, and what planner/graph/ops.cpp calls scratch.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <vector>

#include "planner/graph/op_graph.h"

namespace shardplan {

// What ops read from outside the graph.
struct StepScalars {
  double loss_seed = 1.0;        // LossSeed: gradient of the summed loss, 1 / number of targets of the step
  at::Device device = at::kCPU;  // of what the makers make
};

// Runs one op on `values` (by ValueId).
void run_op(const OpGraph& graph, const Op& op, std::span<at::Tensor> values, const StepScalars& scalars);

// Runs an Mm or SumLeading whose result is written into `out` (same sizes), and makes `out` its output value.
void run_op_into(const OpGraph& graph, const Op& op, std::span<at::Tensor> values, const at::Tensor& out);

// `value` as a view of the storage that `base` lies in. `base_offset`: element of that storage where the value's own storage
// begins.
[[nodiscard]] at::Tensor view_of(const at::Tensor& base, const Value& value, std::int64_t base_offset);

// CHECKs that a result lies as the graph says; the message names op and both layouts. Dimensions of size 1 may have any stride.
void require_layout(const OpGraph& graph, const Op& op, std::span<const at::Tensor> values);

}  // namespace shardplan
