// What would make it fit: single changes of the request, each searched anew; the smallest one that fits of every kind.
#pragma once

#include <filesystem>
#include <vector>

#include "planner/answers/answer.h"

namespace shardplan {

// `hardware_configs`: folder of other devices to try; empty: none.
[[nodiscard]] std::vector<Remedy> remedies(const PlanRequest& request, const std::filesystem::path& hardware_configs);

}  // namespace shardplan
