#include "planner/graph/strides.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace shardplan {

Dims contiguous_strides(const Dims& sizes) {
  Dims strides;
  strides.rank = sizes.rank;
  std::int64_t next = 1;
  for (std::int32_t i = sizes.rank - 1; i >= 0; --i) {
    strides[i] = next;
    next *= std::max<std::int64_t>(sizes[i], 1);
  }
  return strides;
}

bool is_dense(const Dims& sizes, const Dims& strides) {
  // Takes, one after another, the dimension whose stride is the number of elements below it.
  std::int64_t next = 1;
  std::array<bool, 6> taken{};
  for (std::int32_t step = 0; step < sizes.rank; ++step) {
    for (std::int32_t i = 0; i < sizes.rank; ++i) {
      if (taken[static_cast<std::size_t>(i)] || sizes[i] < 2 || strides[i] != next) continue;
      taken[static_cast<std::size_t>(i)] = true;
      next *= sizes[i];
    }
  }
  return next == sizes.numel();
}

Dims broadcast_sizes(std::span<const Value* const> operands) {
  Dims result;
  for (const Value* operand : operands) result.rank = std::max(result.rank, operand->sizes.rank);
  for (std::int32_t i = 0; i < result.rank; ++i) result[i] = 1;
  for (const Value* operand : operands) {
    const std::int32_t skipped = result.rank - operand->sizes.rank;
    for (std::int32_t i = 0; i < operand->sizes.rank; ++i) {
      const std::int64_t size = operand->sizes[i];
      CHECK(size == 1 || result[i + skipped] == 1 || result[i + skipped] == size, "operands of a pointwise op broadcast");
      if (size != 1) result[i + skipped] = size;
    }
  }
  return result;
}

namespace {

bool all_alike(const Dims& result, std::span<const Value* const> operands) {
  return std::all_of(operands.begin(), operands.end(), [&](const Value* v) { return v->sizes == result; });
}

// Strides of an operand over the result's dimensions, 0 where it is broadcast.
Dims broadcast_strides(const Dims& result, const Value& operand) {
  Dims strides;
  strides.rank = result.rank;
  const std::int32_t skipped = result.rank - operand.sizes.rank;
  for (std::int32_t i = 0; i < operand.sizes.rank; ++i) {
    const bool broadcast = operand.sizes[i] == 1 && result[i + skipped] != 1;
    strides[i + skipped] = broadcast ? 0 : operand.strides[i];
  }
  return strides;
}

}  // namespace

Dims pointwise_strides(const Dims& result, std::span<const Value* const> operands) {
  if (all_alike(result, operands)) {
    if (std::all_of(operands.begin(), operands.end(), [](const Value* v) { return is_contiguous(*v); }))
      return contiguous_strides(result);
    const Value& first = *operands.front();
    if (is_dense(first.sizes, first.strides) &&
        std::all_of(operands.begin(), operands.end(), [&](const Value* v) { return v->strides == first.strides; })) {
      return first.strides;
    }
  }
  std::array<Dims, 4> seen;
  const std::size_t num_operands = operands.size();
  CHECK(num_operands <= seen.size(), "a pointwise op has at most four operands");
  for (std::size_t a = 0; a < num_operands; ++a) seen[a] = broadcast_strides(result, *operands[a]);

  // Should dim0 come after dim1, seen from the innermost? The first operand that tells the two apart decides.
  const auto compare = [&](std::int32_t dim0, std::int32_t dim1) {
    for (std::size_t a = 0; a < num_operands; ++a) {
      const std::int64_t stride0 = seen[a][dim0], stride1 = seen[a][dim1];
      if (stride0 == 0 || stride1 == 0) continue;
      if (stride0 != stride1) return stride0 < stride1 ? -1 : 1;
      if (result[dim0] > result[dim1]) return 1;
    }
    return 0;
  };
  std::array<std::int32_t, 6> order{};  // innermost first
  for (std::int32_t i = 0; i < result.rank; ++i) order[static_cast<std::size_t>(i)] = result.rank - 1 - i;
  // Insertion sort that goes on past comparisons without an answer.
  for (std::int32_t i = 1; i < result.rank; ++i) {
    std::int32_t moving = i;
    for (std::int32_t j = i - 1; j >= 0; --j) {
      const int answer = compare(order[static_cast<std::size_t>(j)], order[static_cast<std::size_t>(moving)]);
      if (answer < 0) break;
      if (answer > 0) {
        std::swap(order[static_cast<std::size_t>(j)], order[static_cast<std::size_t>(moving)]);
        moving = j;
      }
    }
  }
  Dims strides;
  strides.rank = result.rank;
  std::int64_t next = 1;
  for (std::int32_t i = 0; i < result.rank; ++i) {
    const std::int32_t dim = order[static_cast<std::size_t>(i)];
    strides[dim] = next;
    next *= result[dim];
  }
  return strides;
}

std::optional<Dims> view_strides(const Value& x, const Dims& sizes) {
  CHECK(x.sizes.numel() == sizes.numel(), "a view keeps the number of elements");
  Dims strides;
  strides.rank = sizes.rank;
  if (x.sizes.rank == 0) {
    for (std::int32_t i = 0; i < sizes.rank; ++i) strides[i] = 1;
    return strides;
  }
  std::int32_t view_dim = sizes.rank - 1;
  std::int64_t chunk_stride = x.strides[x.strides.rank - 1];
  std::int64_t chunk_numel = 1, view_numel = 1;
  for (std::int32_t dim = x.sizes.rank - 1; dim >= 0; --dim) {
    chunk_numel *= x.sizes[dim];
    const bool chunk_ends = dim == 0 || (x.sizes[dim - 1] != 1 && x.strides[dim - 1] != chunk_numel * chunk_stride);
    if (!chunk_ends) continue;
    while (view_dim >= 0 && (view_numel < chunk_numel || sizes[view_dim] == 1)) {
      strides[view_dim] = view_numel * chunk_stride;
      view_numel *= sizes[view_dim];
      --view_dim;
    }
    if (view_numel != chunk_numel) return std::nullopt;
    if (dim > 0) {
      chunk_stride = x.strides[dim - 1];
      chunk_numel = view_numel = 1;
    }
  }
  if (view_dim != -1) return std::nullopt;
  return strides;
}

}  // namespace shardplan
