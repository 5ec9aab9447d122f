// Figures of single points of the knob space, for one request: the quick ones the search compares, the full ones an answer shows.
//
// Quick and full figures are equal (property test): bytes come from the same schedule as the program, time from the same clock as
// the simulation. Keeps what it compiled: graphs and bodies by micro-batch, unit layouts by words.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>

#include "planner/lowering/quick_forecast.h"
#include "planner/search/forecast.h"
#include "planner/search/request.h"
#include "planner/search/step_clock.h"

namespace shardplan {

struct PlannedChoice {
  KnobChoice choice;
  Plan plan;
  Forecast forecast;
};

struct Figures {
  std::int64_t peak_allocated_bytes = 0;
  std::int64_t binding_bytes = 0;          // to be compared with the capacity; see binding_bytes(Forecast)
  std::chrono::nanoseconds least_step{0};  // never above `step`
  std::chrono::nanoseconds step{0};        // one optimizer step; 0 until asked for
};

class Evaluator {
 public:
  explicit Evaluator(PlanRequest request);
  // Shares what `like` compiled and will compile, where the two requests differ in nothing that matters for it.
  Evaluator(PlanRequest request, const Evaluator& like);

  [[nodiscard]] const PlanRequest& request() const { return request_; }
  [[nodiscard]] const Segments& segments() const { return compiled_->segments; }
  [[nodiscard]] const OpGraph& graph() const { return *compiled_->batches.begin()->second.shared.graph; }  // of some micro-batch
  [[nodiscard]] std::int64_t capacity_bytes() const { return request_.capacity_bytes(); }

  // The plan with every decision of the choice expanded.
  [[nodiscard]] Plan plan_of(const KnobChoice& choice) const;

  // Bytes exact, time from below: about a tenth of a millisecond the first time.
  [[nodiscard]] Figures bounds(const KnobChoice& choice);
  // Time exact, with collectives sharing links: some times as long.
  [[nodiscard]] std::chrono::nanoseconds step_time(const KnobChoice& choice);
  // Bytes exact; the step time too, but for long accumulations, where it is the time from below.
  [[nodiscard]] Figures quick(const KnobChoice& choice);
  // Lowered, counted and simulated: milliseconds. Long accumulations are lowered with four micro-steps and their time is stretched.
  [[nodiscard]] PlannedChoice full(const KnobChoice& choice);
  [[nodiscard]] Lowered lowered(const Plan& plan);
  [[nodiscard]] const std::vector<UnitLayout>& layouts(const KnobChoice& choice) { return units_of(choice).layouts; }

  // What forward, recompute and backward of all micro-steps take on the compute stream: below the step time of every choice with
  // this batch shape and recompute word, whatever the mesh, the units, and the gathers.
  [[nodiscard]] std::chrono::nanoseconds compute_floor(const KnobChoice& choice);

  // Tokens of one rank in a step.
  [[nodiscard]] std::int64_t tokens(const KnobChoice& choice) const {
    return choice.micro_batch * choice.grad_accum * request_.workload.seq_len;
  }

 private:
  struct Batch {
    SharedGraph shared;
    std::unique_ptr<QuickForecast> quick;
  };
  struct Units {
    std::vector<UnitLayout> layouts;
    std::vector<ParameterPlace> places;
  };
  using UnitsKey = std::tuple<UnitsWord, RootWord, std::int32_t>;  // last: shard degree

  struct Compiled {
    HardwareSpec hardware;
    std::int32_t ranks_per_node = 1;
    std::map<std::int64_t, Batch> batches;  // by micro-batch
    std::map<UnitsKey, Units> units;
    std::map<RecomputeWord, std::vector<SpanPlan>> spans;
    std::map<std::pair<RecomputeWord, std::int64_t>, std::chrono::nanoseconds> floors;  // of one micro-step
    std::map<KnobChoice, Figures> bounds;
    std::map<KnobChoice, std::chrono::nanoseconds> step_times;
    Segments segments;  // do not depend on the batch
  };

  Batch& batch_of(std::int64_t micro_batch);
  const Units& units_of(const KnobChoice& choice);
  [[nodiscard]] const std::vector<SpanPlan>& spans_of(const RecomputeWord& word);
  [[nodiscard]] ScheduleInput input_of(const KnobChoice& choice);
  [[nodiscard]] StepClock clock_of(const KnobChoice& choice);
  [[nodiscard]] Figures count_bounds(const KnobChoice& choice);

  PlanRequest request_;
  Plan base_;  // all but the decisions
  bool synchronous_ = false;
  std::shared_ptr<Compiled> compiled_;
};

}  // namespace shardplan
