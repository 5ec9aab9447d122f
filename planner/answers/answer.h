// What the planner answers: a plan with its forecast, or what keeps every plan from fitting; what else there is; why.
//
// Figures of plans that are only compared come from counts and bounds where a full simulation would cost too much: then
// `counted_only` is set. Same request, same answer, to the byte.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "planner/search/search.h"

namespace shardplan {

struct OtherWord {
  std::string value;  // "none"
  std::int64_t peak_allocated_bytes = 0;
  std::int64_t over_bytes = 0;  // beyond the capacity; not above 0: fits
  double step_seconds = 0;
  double tokens_per_second_per_gpu = 0;
  bool counted_only = false;
};

// One kind of decision.
struct Explanation {
  std::string decision;  // flag name: "recompute"
  std::string chosen;
  bool given = false;  // fixed by the request
  std::string because;
  std::vector<OtherWord> instead_of;  // the other words, everything else as chosen
};

struct Alternative {
  std::vector<std::string> changes;  // "--recompute full"
  std::string label;                 // "full recompute"
  PlannedChoice planned;
};

struct Remedy {
  std::string change;  // "--gpus 8"
  PlannedChoice planned;
};

struct Infeasible {
  std::string binding;              // "device memory in step 2, backward of layers.31"
  std::int64_t short_by_bytes = 0;  // of the closest plan
  PlannedChoice closest;            // needs the least
  std::vector<Remedy> remedies;     // single changes that fit, smallest first
};

struct Answer {
  PlanRequest request;
  std::optional<PlannedChoice> best;
  std::optional<Infeasible> infeasible;
  std::vector<Alternative> alternatives;
  std::vector<Explanation> explanation;
  std::vector<std::string> warnings;  // what to know before trusting the plan, one sentence each
  SearchFacts search;
};

}  // namespace shardplan
