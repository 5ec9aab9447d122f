#include "planner/graph/strides.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <set>

namespace shardplan {
namespace {

Value contiguous(const Dims& sizes) {
  return {.storage = {}, .dtype = DType::F32, .sizes = sizes, .strides = contiguous_strides(sizes), .offset = 0};
}

Value transposed(Value x, std::int32_t a, std::int32_t b) {
  std::swap(x.sizes[a], x.sizes[b]);
  std::swap(x.strides[a], x.strides[b]);
  return x;
}

Dims result_of(std::initializer_list<const Value*> operands) {
  const std::vector<const Value*> list(operands);
  return pointwise_strides(broadcast_sizes(list), list);
}

// Layouts that PyTorch 2.11 gives: torch.empty(...).stride() of the expressions named.
TEST(PointwiseStrides, FirstOperandThatTellsDimensionsApartDecides) {
  const Value q = transposed(contiguous(Dims{2, 5, 3, 4}), 1, 2);  // [B, A, S, D] that lies as [B, S, A, D]
  const Value table = contiguous(Dims{1, 1, 5, 4});
  const Value rotated = contiguous(Dims{2, 3, 5, 4});
  EXPECT_EQ(result_of({&q, &table}), (Dims{60, 4, 12, 1}));  // q * cos keeps q's layout
  EXPECT_EQ(result_of({&rotated, &table}), (Dims{60, 20, 4, 1}));
  EXPECT_EQ(result_of({&q, &rotated}), (Dims{60, 4, 12, 1}));  // q first
  EXPECT_EQ(result_of({&rotated, &q}), (Dims{60, 20, 4, 1}));  // the other first
}

TEST(PointwiseStrides, ExpandedOperandsGiveContiguousResults) {
  Value column = contiguous(Dims{2, 3, 1});
  column.sizes = Dims{2, 3, 7};
  column.strides = Dims{3, 1, 0};
  EXPECT_EQ(result_of({&column}), (Dims{21, 7, 1}));
}

TEST(ViewStrides, DimensionsMergeOnlyWhereMemoryIsInOneStretch) {
  const Value q = transposed(contiguous(Dims{2, 5, 3, 4}), 1, 2);
  EXPECT_FALSE(view_strides(q, Dims{6, 5, 4}).has_value());                         // B and A are not neighbours
  EXPECT_EQ(view_strides(transposed(q, 1, 2), Dims{2, 5, 12}), (Dims{60, 12, 1}));  // back again they are
  EXPECT_EQ(view_strides(q, Dims{2, 3, 5, 2, 2}), (Dims{60, 4, 12, 2, 1}));         // splitting is always a view
  const Value one = transposed(contiguous(Dims{1, 5, 3, 4}), 1, 2);
  EXPECT_EQ(view_strides(one, Dims{3, 5, 4}), (Dims{4, 12, 1}));  // nothing to merge with B = 1
}

Dims arbitrary_sizes() {
  Dims sizes;
  sizes.rank = *rc::gen::inRange(1, 5);
  for (std::int32_t i = 0; i < sizes.rank; ++i) sizes[i] = *rc::gen::inRange(1, 5);
  return sizes;
}

Value arbitrary_permutation() {
  Value x = contiguous(arbitrary_sizes());
  for (std::int32_t i = 0; i < 3; ++i) x = transposed(x, *rc::gen::inRange(0, x.sizes.rank), *rc::gen::inRange(0, x.sizes.rank));
  return x;
}

// All places that a value's elements have, in element order.
std::vector<std::int64_t> places(const Dims& sizes, const Dims& strides) {
  std::vector<std::int64_t> result;
  for (std::int64_t n = 0; n < sizes.numel(); ++n) {
    std::int64_t rest = n, place = 0;
    for (std::int32_t i = sizes.rank - 1; i >= 0; --i) {
      place += rest % sizes[i] * strides[i];
      rest /= sizes[i];
    }
    result.push_back(place);
  }
  return result;
}

RC_GTEST_PROP(PointwiseStrides, AreAlwaysDense, ()) {
  const Value a = arbitrary_permutation();
  Value b = contiguous(a.sizes);
  for (std::int32_t i = 0; i < b.sizes.rank; ++i) {
    if (*rc::gen::arbitrary<bool>()) b.sizes[i] = 1;
  }
  b.strides = contiguous_strides(b.sizes);
  const Dims strides = *rc::gen::arbitrary<bool>() ? result_of({&a, &b}) : result_of({&b, &a});
  const std::vector<std::int64_t> all = places(a.sizes, strides);
  const std::set<std::int64_t> distinct(all.begin(), all.end());
  RC_ASSERT(static_cast<std::int64_t>(distinct.size()) == a.sizes.numel());
  RC_ASSERT(*distinct.rbegin() == a.sizes.numel() - 1);
  RC_ASSERT(is_dense(a.sizes, strides));
}

// A view names the same places in the same order.
RC_GTEST_PROP(ViewStrides, KeepEveryElementInItsPlace, ()) {
  const Value x = arbitrary_permutation();
  Dims sizes;
  std::int64_t left = x.sizes.numel();
  while (sizes.rank < 4 && left > 1) {
    std::vector<std::int64_t> divisors;
    for (std::int64_t d = 1; d <= left; ++d) {
      if (left % d == 0) divisors.push_back(d);
    }
    const std::int64_t d = *rc::gen::elementOf(divisors);
    sizes.d[static_cast<std::size_t>(sizes.rank++)] = d;
    left /= d;
  }
  sizes.d[static_cast<std::size_t>(sizes.rank++)] = left;
  const std::optional<Dims> strides = view_strides(x, sizes);
  if (is_contiguous(x)) RC_ASSERT(strides.has_value());
  if (strides) RC_ASSERT(places(sizes, *strides) == places(x.sizes, x.strides));
}

RC_GTEST_PROP(Dense, HoldsExactlyWhenPlacesAreZeroToN, ()) {
  Value x = arbitrary_permutation();
  const auto dim = *rc::gen::inRange(0, x.sizes.rank);
  if (*rc::gen::arbitrary<bool>()) x.strides[dim] *= *rc::gen::inRange(1, 3);
  const std::vector<std::int64_t> all = places(x.sizes, x.strides);
  const std::set<std::int64_t> distinct(all.begin(), all.end());
  const bool fills = static_cast<std::int64_t>(distinct.size()) == x.sizes.numel() && *distinct.rbegin() == x.sizes.numel() - 1;
  RC_ASSERT(is_dense(x.sizes, x.strides) == fills);
}

}  // namespace
}  // namespace shardplan
