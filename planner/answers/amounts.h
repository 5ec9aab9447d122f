// Printed amounts of memory that share one unit and add up as printed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace shardplan {

struct AmountUnit {
  std::string_view name;  // "GiB"
  std::int64_t bytes = 0;
};

// GiB, or MiB when `largest_bytes` is below 1 GiB.
[[nodiscard]] AmountUnit amount_unit(std::int64_t largest_bytes);

// "12.34", without the unit.
[[nodiscard]] std::string amount_text(std::int64_t bytes, const AmountUnit& unit);

// The parts in hundredths of the unit, rounded so that they add up to the rounded sum (largest remainders first).
[[nodiscard]] std::vector<std::int64_t> hundredths_that_add_up(const std::vector<std::int64_t>& parts_bytes,
                                                               const AmountUnit& unit);

}  // namespace shardplan
