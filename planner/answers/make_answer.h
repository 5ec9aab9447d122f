// Request -> Answer: the search, then what else is worth knowing, or what would make it fit; every shown plan judged by check_plan.
#pragma once

#include <filesystem>

#include "planner/answers/answer.h"

namespace shardplan {

struct AnswerOptions {
  int num_alternatives = 3;
  std::filesystem::path hardware_configs;  // other devices that remedies may name; empty: none
};

[[nodiscard]] Answer make_answer(const PlanRequest& request, const AnswerOptions& options);

}  // namespace shardplan
