// Figures of single points of the knob space, for one request: the quick ones the search compares, the full ones an answer shows.
//
// Both give the same bytes and the same step time; the quick ones leave out everything else (property test: quick equals full).
// Keeps the graphs it built: one per micro-batch.
#pragma once

#include <chrono>
#include <cstdint>

#include "planner/search/forecast.h"
#include "planner/search/request.h"

namespace shardplan {

struct PlannedChoice {
  KnobChoice choice;
  Plan plan;
  Forecast forecast;
};

struct Figures {
  std::int64_t peak_requested_bytes = 0;
  std::int64_t peak_allocated_bytes = 0;
  std::int64_t binding_bytes = 0;      // to be compared with the capacity; see binding_bytes(Forecast)
  std::chrono::nanoseconds step{0};    // one optimizer step
};

class Evaluator {
 public:
  explicit Evaluator(PlanRequest request);

  [[nodiscard]] const PlanRequest& request() const { return request_; }
  [[nodiscard]] const Segments& segments() const { return segments_; }
  [[nodiscard]] std::int64_t capacity_bytes() const { return request_.capacity_bytes(); }

  // The plan with every decision of the choice expanded.
  [[nodiscard]] Plan plan_of(const KnobChoice& choice) const;
  [[nodiscard]] Figures quick(const KnobChoice& choice);
  [[nodiscard]] PlannedChoice full(const KnobChoice& choice);

  // Tokens of one rank in a step.
  [[nodiscard]] std::int64_t tokens(const KnobChoice& choice) const {
    return choice.micro_batch * choice.grad_accum * request_.workload.seq_len;
  }

 private:
  PlanRequest request_;
  Plan base_;           // all but the decisions
  GraphCache graphs_;
  Segments segments_;   // do not depend on the batch
};

}  // namespace shardplan
