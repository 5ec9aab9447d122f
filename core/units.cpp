#include "core/units.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <limits>

#include "core/error.h"

namespace shardplan {
namespace {

struct Unit {
  std::string_view name;
  double factor;
};

constexpr double kKi = 1024.0;
constexpr std::array kByteUnits = {
    Unit{"B", 1},
    Unit{"KiB", kKi},
    Unit{"MiB", kKi* kKi},
    Unit{"GiB", kKi* kKi* kKi},
    Unit{"TiB", kKi* kKi* kKi* kKi},
    Unit{"kB", 1e3},
    Unit{"KB", 1e3},
    Unit{"MB", 1e6},
    Unit{"GB", 1e9},
    Unit{"TB", 1e12},
};
constexpr std::array kFlopUnits = {Unit{"FLOP", 1},    Unit{"kFLOP", 1e3},  Unit{"MFLOP", 1e6},
                                   Unit{"GFLOP", 1e9}, Unit{"TFLOP", 1e12}, Unit{"PFLOP", 1e15}};
constexpr std::array kTimeUnits = {Unit{"s", 1},     Unit{"ms", 1e-3}, Unit{"us", 1e-6},
                                   Unit{"ns", 1e-9}, Unit{"min", 60},  Unit{"h", 3600}};

// A number without sign, and the text after it with the space between them removed.
struct Quantity {
  double number = 0;
  std::optional<std::int64_t> integer;  // set when the number has neither point nor exponent
  std::string_view unit;
};

std::optional<Quantity> split(std::string_view text) {
  if (text.empty() || text.front() < '0' || text.front() > '9') return std::nullopt;
  Quantity q;
  const char* const end = text.data() + text.size();
  const auto [after, status] = std::from_chars(text.data(), end, q.number, std::chars_format::fixed);
  if (status != std::errc{} || !std::isfinite(q.number)) return std::nullopt;
  std::int64_t integer = 0;
  const auto [after_integer, integer_status] = std::from_chars(text.data(), end, integer);
  if (integer_status == std::errc{} && after_integer == after) q.integer = integer;
  q.unit = std::string_view(after, static_cast<std::size_t>(end - after));
  if (q.unit.starts_with(' ')) q.unit.remove_prefix(1);
  return q;
}

template <std::size_t N>
std::optional<double> factor_of(const std::array<Unit, N>& units, std::string_view name) {
  for (const Unit& unit : units) {
    if (unit.name == name) return unit.factor;
  }
  return std::nullopt;
}

template <std::size_t N>
std::optional<double> rate_from_text(const std::array<Unit, N>& units, std::string_view text) {
  const std::optional<Quantity> q = split(text);
  constexpr std::string_view kPerSecond = "/s";
  if (!q || !q->unit.ends_with(kPerSecond)) return std::nullopt;
  const std::optional<double> factor = factor_of(units, q->unit.substr(0, q->unit.size() - kPerSecond.size()));
  if (!factor) return std::nullopt;
  return q->number * *factor;
}

constexpr std::int64_t kKib = 1024;
constexpr std::int64_t kMib = 1024 * kKib;
constexpr std::int64_t kGib = 1024 * kMib;

}  // namespace

std::optional<std::int64_t> bytes_from_text(std::string_view text) {
  const std::optional<Quantity> q = split(text);
  if (!q) return std::nullopt;
  const std::optional<double> factor = factor_of(kByteUnits, q->unit);
  if (!factor) return std::nullopt;
  // Integers stay exact beyond 2^53.
  if (q->integer) {
    std::int64_t product = 0;
    if (__builtin_mul_overflow(*q->integer, static_cast<std::int64_t>(*factor), &product)) return std::nullopt;
    return product;
  }
  const double bytes = std::round(q->number * *factor);
  if (bytes >= 0x1p63) return std::nullopt;
  return static_cast<std::int64_t>(bytes);
}

std::optional<double> bytes_per_second_from_text(std::string_view text) { return rate_from_text(kByteUnits, text); }
std::optional<double> flops_per_second_from_text(std::string_view text) { return rate_from_text(kFlopUnits, text); }

std::optional<double> seconds_from_text(std::string_view text) {
  const std::optional<Quantity> q = split(text);
  if (!q) return std::nullopt;
  const std::optional<double> factor = factor_of(kTimeUnits, q->unit);
  if (!factor) return std::nullopt;
  return q->number * *factor;
}

std::string text_from_bytes(std::int64_t bytes) {
  const std::int64_t magnitude = bytes < 0 ? -bytes : bytes;
  const auto b = static_cast<double>(bytes);
  if (magnitude >= kGib) return fmt::format("{:.2f} GiB", b / static_cast<double>(kGib));
  if (magnitude >= kMib) return fmt::format("{:.2f} MiB", b / static_cast<double>(kMib));
  if (magnitude >= kKib) return fmt::format("{:.2f} KiB", b / static_cast<double>(kKib));
  return fmt::format("{} B", bytes);
}

std::string gib_from_bytes(std::int64_t bytes) {
  return fmt::format("{:.2f}", static_cast<double>(bytes) / static_cast<double>(kGib));
}

std::string text_from_count(std::int64_t count) {
  const double magnitude = std::abs(static_cast<double>(count));
  const auto c = static_cast<double>(count);
  if (magnitude >= 1e12) return fmt::format("{:.2f} T", c / 1e12);
  if (magnitude >= 1e9) return fmt::format("{:.2f} B", c / 1e9);
  if (magnitude >= 1e6) return fmt::format("{:.2f} M", c / 1e6);
  if (magnitude >= 1e3) return fmt::format("{:.2f} K", c / 1e3);
  return fmt::format("{}", count);
}

std::string text_with_thousands(std::int64_t number) {
  std::string digits = std::to_string(number);
  const std::size_t first_digit = number < 0 ? 1 : 0;
  for (std::size_t at = digits.size(); at > first_digit + 3;) {
    at -= 3;
    digits.insert(at, 1, ',');
  }
  return digits;
}

std::string text_from_seconds(double seconds) {
  const double magnitude = std::abs(seconds);
  if (magnitude >= 3600) return fmt::format("{:.2f} h", seconds / 3600);
  if (magnitude >= 60) return fmt::format("{:.1f} min", seconds / 60);
  if (magnitude >= 1) return fmt::format("{:.2f} s", seconds);
  if (magnitude >= 1e-2) return fmt::format("{:.0f} ms", seconds * 1e3);
  if (magnitude >= 1e-3) return fmt::format("{:.2f} ms", seconds * 1e3);
  if (magnitude >= 1e-6) return fmt::format("{:.2f} us", seconds * 1e6);
  if (magnitude == 0) return "0 s";
  return fmt::format("{:.0f} ns", seconds * 1e9);
}

std::chrono::nanoseconds nanoseconds_from_seconds(double seconds) {
  CHECK(seconds >= 0, "a modelled duration is a number not below zero");
  const double nanoseconds = std::ceil(seconds * 1e9);
  CHECK(nanoseconds < 0x1p63, "a modelled duration is shorter than 292 years");
  return std::chrono::nanoseconds(static_cast<std::int64_t>(nanoseconds));
}

double seconds_from_nanoseconds(std::chrono::nanoseconds t) { return static_cast<double>(t.count()) * 1e-9; }

}  // namespace shardplan
