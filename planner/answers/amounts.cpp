#include "planner/answers/amounts.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace shardplan {
namespace {

// Round half up, in integers.
std::int64_t rounded_hundredths(std::int64_t bytes, const AmountUnit& unit) { return (bytes * 100 + unit.bytes / 2) / unit.bytes; }

}  // namespace

AmountUnit amount_unit(std::int64_t largest_bytes) {
  constexpr std::int64_t kGiB = std::int64_t{1} << 30, kMiB = std::int64_t{1} << 20;
  return largest_bytes < kGiB ? AmountUnit{"MiB", kMiB} : AmountUnit{"GiB", kGiB};
}

std::string amount_text(std::int64_t bytes, const AmountUnit& unit) {
  const std::int64_t hundredths = rounded_hundredths(std::abs(bytes), unit);
  return fmt::format("{}{}.{:02}", bytes < 0 && hundredths > 0 ? "-" : "", hundredths / 100, hundredths % 100);
}

std::vector<std::int64_t> hundredths_that_add_up(const std::vector<std::int64_t>& parts_bytes, const AmountUnit& unit) {
  const std::int64_t total = std::accumulate(parts_bytes.begin(), parts_bytes.end(), std::int64_t{0});
  std::vector<std::int64_t> hundredths, remainder;
  for (const std::int64_t part : parts_bytes) {
    hundredths.push_back(part * 100 / unit.bytes);
    remainder.push_back(part * 100 % unit.bytes);
  }
  std::int64_t missing = rounded_hundredths(total, unit) - std::accumulate(hundredths.begin(), hundredths.end(), std::int64_t{0});
  std::vector<std::size_t> order(parts_bytes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return remainder[a] > remainder[b]; });
  for (std::size_t i = 0; i < order.size() && missing > 0; ++i, --missing) ++hundredths[order[i]];
  return hundredths;
}

}  // namespace shardplan
