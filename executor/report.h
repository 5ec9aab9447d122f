// Lays what was measured beside what was predicted: report.json (kind "shardplan.report").
//
// On CPU a phase is equal when every task's peak and level after it are equal to the byte. On CUDA requested bytes are compared the
// same way, and `equal` says whether they agree; times never decide.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "core/hardware_spec.h"
#include "core/timeline.h"

namespace shardplan {

struct PhaseComparison {
  Timeline predicted, measured;
  std::int64_t workspace_peak_bytes = 0;  // measured packing scratch, outside the equality
};

struct Report {
  std::string plan_hash;
  DeviceKind device = DeviceKind::Cpu;
  std::int32_t ranks = 1;
  std::vector<PhaseComparison> phases;  // by phase, then rank

  [[nodiscard]] bool equal() const;
};

[[nodiscard]] nlohmann::ordered_json json_from_report(const Report& report);

// "predicted | measured" for people: one line a phase and rank, then the categories at the highest peak.
[[nodiscard]] std::string text_from_report(const Report& report);

}  // namespace shardplan
