// Which elements of which parameters lie in a range of a unit's flat buffer. Rows are row-major, so a range of the flat buffer is a
// few contiguous ranges of parameters, and padding.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/lowering/unit_layout.h"

namespace shardplan {

struct RowRange {
  ParameterId parameter;           // unset: padding
  std::int64_t first_element = 0;  // within the parameter
  std::int64_t numel = 0;
  std::int64_t at = 0;  // within the asked range
  bool operator==(const RowRange&) const = default;
};

// In order, without gaps: covers [begin, end) of the flat buffer exactly. Requires 0 <= begin <= end <= padded_numel.
[[nodiscard]] std::vector<RowRange> rows_in_range(const FlatGroup& group, std::int64_t begin, std::int64_t end);

}  // namespace shardplan
