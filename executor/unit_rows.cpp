#include "executor/unit_rows.h"

#include <algorithm>

#include "core/error.h"

namespace shardplan {

std::vector<RowRange> rows_in_range(const FlatGroup& group, std::int64_t begin, std::int64_t end) {
  CHECK(begin >= 0 && begin <= end && end <= group.padded_numel, "a range lies inside its flat buffer");
  std::vector<RowRange> rows;
  std::int64_t covered = begin;
  for (const ParameterSlot& slot : group.slots) {
    const std::int64_t first = std::max(begin, slot.offset), last = std::min(end, slot.offset + slot.numel);
    if (first >= last) continue;
    CHECK(first == covered, "parameters of a flat buffer follow each other without gaps");
    rows.push_back({.parameter = slot.parameter, .first_element = first - slot.offset, .numel = last - first, .at = first - begin});
    covered = last;
  }
  if (covered < end) rows.push_back({.parameter = {}, .first_element = 0, .numel = end - covered, .at = covered - begin});
  return rows;
}

}  // namespace shardplan
