// Index types: one distinct type per kind of thing that is numbered, so that two identities cannot be swapped.
//
// An id is a position in the table that owns the thing. A default-made id is unset.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace shardplan {

template <class Tag>
struct Index {
  std::int32_t value = -1;

  constexpr Index() = default;
  constexpr explicit Index(std::int64_t position) : value(static_cast<std::int32_t>(position)) {}

  [[nodiscard]] constexpr bool is_set() const { return value >= 0; }
  [[nodiscard]] constexpr std::size_t at() const { return static_cast<std::size_t>(value); }
  constexpr auto operator<=>(const Index&) const = default;
};

// Of a StepProgram.
using BufferId = Index<struct BufferTag>;
using TaskId = Index<struct TaskTag>;
using StreamId = Index<struct StreamTag>;
using AxisId = Index<struct AxisTag>;
using BodyId = Index<struct BodyTag>;

// Of an op graph and a plan.
using OpId = Index<struct OpTag>;
using ValueId = Index<struct ValueTag>;
using StorageId = Index<struct StorageTag>;
using ParameterId = Index<struct ParameterTag>;
using SegmentId = Index<struct SegmentTag>;
using UnitId = Index<struct UnitTag>;

}  // namespace shardplan

template <class Tag>
struct std::hash<shardplan::Index<Tag>> {
  std::size_t operator()(const shardplan::Index<Tag>& id) const noexcept { return std::hash<std::int32_t>{}(id.value); }
};
