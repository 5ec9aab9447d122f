#include "core/memory_category.h"

#include "core/error.h"

namespace shardplan {
namespace {

// In the order of the enumeration.
constexpr std::array<std::string_view, kNumMemoryCategories> kNames = {
    "Sharded Param", "Unsharded Param", "Buffer",         "Sharded Grad", "Unsharded Grad", "OptState",  "Activation",
    "Temp",          "All Gather",      "Reduce Scatter", "All Reduce",   "Inputs",         "Workspace", "Rounding",
    "Fragmentation", "CUDA context",    "NCCL",
};

}  // namespace

std::string_view category_name(MemoryCategory category) {
  const auto position = static_cast<std::size_t>(category);
  CHECK(position < kNames.size(), "a memory category is one of the closed list");
  return kNames[position];
}

std::optional<MemoryCategory> category_from_name(std::string_view name) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<MemoryCategory>(i);
  }
  return std::nullopt;
}

}  // namespace shardplan
