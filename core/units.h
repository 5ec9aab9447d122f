// Quantities as people write and read them.
//
// Parsing: "80 GiB" is 80 * 2^30, "80 GB" is 80 * 10^9; rates "900 GB/s", "989 TFLOP/s"; times "5 us". A space is optional.
// Formatting: bytes always in GiB (or MiB, KiB below), labelled as such; counts as "8.03 B"; numbers with thousands separators.
// Errors: the parsers return nothing for text that is no such quantity; the caller knows where it stood.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace shardplan {

[[nodiscard]] std::optional<std::int64_t> bytes_from_text(std::string_view text);
[[nodiscard]] std::optional<double> bytes_per_second_from_text(std::string_view text);
[[nodiscard]] std::optional<double> flops_per_second_from_text(std::string_view text);
[[nodiscard]] std::optional<double> seconds_from_text(std::string_view text);

[[nodiscard]] std::string text_from_bytes(std::int64_t bytes);       // "79.18 GiB", "512.00 MiB", "88 B"
[[nodiscard]] std::string gib_from_bytes(std::int64_t bytes);        // "79.18": two decimals, no label
[[nodiscard]] std::string text_from_count(std::int64_t count);       // "8.03 B", "124.44 M"
[[nodiscard]] std::string text_with_thousands(std::int64_t number);  // "8,030,261,248"
[[nodiscard]] std::string text_from_seconds(double seconds);         // "1.24 s", "38 ms"

// The one place where modelled seconds become integer nanoseconds: rounds up.
[[nodiscard]] std::chrono::nanoseconds nanoseconds_from_seconds(double seconds);
[[nodiscard]] double seconds_from_nanoseconds(std::chrono::nanoseconds t);

// Smallest multiple of `step` that is not below `value`. Requires value >= 0, step > 0.
[[nodiscard]] constexpr std::int64_t round_up(std::int64_t value, std::int64_t step) { return (value + step - 1) / step * step; }

}  // namespace shardplan
