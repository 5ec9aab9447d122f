// The closed list of what memory is held for, in PyTorch's words where it has them (ARCHITECTURE.md, terms).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace shardplan {

// The order is that of every table and file. Never renumber: Timelines on disk hold the names, tests the order.
enum class MemoryCategory : std::uint8_t {
  ShardedParam,
  UnshardedParam,
  Buffer,
  ShardedGrad,
  UnshardedGrad,
  OptState,
  Activation,
  Temp,
  AllGather,
  ReduceScatter,
  AllReduce,
  Inputs,
  Workspace,
  Rounding,
  Fragmentation,
  CudaContext,
  Nccl,
};
inline constexpr int kNumMemoryCategories = 17;

// "Sharded Param", "OptState", "CUDA context", ...
[[nodiscard]] std::string_view category_name(MemoryCategory category);
[[nodiscard]] std::optional<MemoryCategory> category_from_name(std::string_view name);

// Bytes by category; a value that adds and compares.
struct CategoryBytes {
  std::array<std::int64_t, kNumMemoryCategories> bytes{};

  [[nodiscard]] std::int64_t& operator[](MemoryCategory category) { return bytes[static_cast<std::size_t>(category)]; }
  [[nodiscard]] std::int64_t operator[](MemoryCategory category) const { return bytes[static_cast<std::size_t>(category)]; }
  [[nodiscard]] std::int64_t total() const {
    std::int64_t sum = 0;
    for (const std::int64_t b : bytes) sum += b;
    return sum;
  }
  bool operator==(const CategoryBytes&) const = default;
};

}  // namespace shardplan
