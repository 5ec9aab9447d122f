// How a unit's parameters lie in memory: one flat buffer per group of equal (trainable or frozen), parameters whole and in order,
// padded at the end, cut into shard-degree equal stretches; rank r of the shard axis stores the r-th.
//
// A gather therefore lands in place and a gradient is written where it is reduced.
// Units: elements; offsets from the start of the flat buffer. Laws (tests): stretches are equal and cover every parameter once.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/ids.h"
#include "planner/graph/op_graph.h"
#include "planner/graph/segments.h"
#include "planner/lowering/plan.h"

namespace shardplan {

struct ParameterSlot {
  ParameterId parameter;
  std::int64_t offset = 0;
  std::int64_t numel = 0;
  bool operator==(const ParameterSlot&) const = default;
};

// The fused optimizer takes one dtype. Where weights and moments differ, it works on fp32 copies of so many elements at most.
inline constexpr std::int64_t kWidenedPieceNumel = std::int64_t{1} << 22;

struct FlatGroup {
  bool trainable = true;
  std::vector<ParameterSlot> slots;
  std::int64_t numel = 0;          // without padding
  std::int64_t padded_numel = 0;   // multiple of the shard degree
  std::int64_t stretch_numel = 0;  // padded_numel / shard degree
  bool operator==(const FlatGroup&) const = default;
};

struct UnitLayout {
  std::string name;
  std::vector<SegmentId> segments;  // that read its parameters, ascending: the plan's, and any other use of a tied one
  std::vector<FlatGroup> groups;    // trainable first; empty groups left out
  bool reshard_after_forward = true;
  bool operator==(const UnitLayout&) const = default;
};

// By UnitId, in the order of the plan. ConfigError when the units do not cover every segment with parameters exactly once.
[[nodiscard]] std::vector<UnitLayout> unit_layouts(const OpGraph& graph, const Segments& segments, const Plan& plan);

// Where a parameter lies: unit, group, slot.
struct ParameterPlace {
  UnitId unit;
  std::int32_t group = 0;
  std::int32_t slot = 0;
};
[[nodiscard]] std::vector<ParameterPlace> parameter_places(const OpGraph& graph, const std::vector<UnitLayout>& units);

}  // namespace shardplan
