// Layout rules of ATen results: which strides an op gives its result, and whether a reshape is a view.
//
// Pure functions over sizes and strides in elements. Source: PyTorch 2.11, TensorIterator (order of dimensions taken from the
// operands, earlier ones first) and the stride computation behind view().
#pragma once

#include <optional>
#include <span>

#include "planner/graph/op_graph.h"

namespace shardplan {

[[nodiscard]] Dims contiguous_strides(const Dims& sizes);

// Every element has its own place and no place is left over, in some order of the dimensions.
[[nodiscard]] bool is_dense(const Dims& sizes, const Dims& strides);

// Sizes of the broadcast of all operands. CHECK when they do not fit.
[[nodiscard]] Dims broadcast_sizes(std::span<const Value* const> operands);

// Strides of the fresh result of a pointwise op over `operands`.
[[nodiscard]] Dims pointwise_strides(const Dims& result, std::span<const Value* const> operands);

// Strides of x seen with `sizes` of the same number of elements; nothing when that takes a copy.
[[nodiscard]] std::optional<Dims> view_strides(const Value& x, const Dims& sizes);

}  // namespace shardplan
