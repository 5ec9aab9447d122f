// Plans for models small enough for a test, made from knob words without a search.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/lowering/plan.h"
#include "planner/search/knobs.h"

namespace shardplan {

struct SmallPlan {
  KnobChoice knobs;
  std::int64_t seq_len = 32;
  Precision precision{.compute = DType::F32};
  std::vector<std::string> train = {"all"};
  std::int32_t steps = 3;
};

// A plan for CPU ranks. `config`: a config.json document.
[[nodiscard]] Plan plan_of(const nlohmann::ordered_json& config, const SmallPlan& small);

}  // namespace shardplan
