#include "planner/search/evaluate.h"

#include <algorithm>
#include <utility>

#include "planner/graph/parameter_table.h"
#include "planner/search/step_clock.h"
#include "simulator/cost_model.h"

namespace shardplan {
namespace {

using std::chrono::nanoseconds;

Plan base_plan(const PlanRequest& request) {
  Plan plan;
  plan.model_name = request.model.name;
  plan.model_config = request.model.config;
  plan.hardware_id = request.hardware.id;
  plan.device = request.hardware.device;
  plan.workload = request.workload;
  plan.num_nodes = request.nodes;
  plan.kernels = kernels_for(request.hardware.device, request.workload.precision.compute,
                             request.model.num_kv_heads != request.model.num_heads);
  return plan;
}

// Time of forward, recompute and backward alone.
class ComputeFloor final : public TaskSink {
 public:
  void resident(const BufferKey&, std::int64_t, MemoryCategory) override {}
  TaskId begin(const TaskHead&) override { return TaskId(num_tasks_++); }
  void wait(TaskId) override {}
  void allocate(const BufferKey&, std::int64_t, MemoryCategory) override {}
  void release(const BufferKey&, std::int64_t) override {}
  void kernel(const KernelWork&) override {}
  void collective(const CollectiveWork&) override {}
  void body(const SegmentBody& body, std::span<const OutsideDecision>) override { sum_ += nanoseconds(body.nanoseconds); }
  void end() override {}
  [[nodiscard]] nanoseconds sum() const { return sum_; }

 private:
  std::int64_t num_tasks_ = 0;
  nanoseconds sum_{0};
};

// Micro-steps that QuickForecast times one by one; of more it guesses the middle ones, which is no bound.
constexpr std::int32_t kMostTimedMicroSteps = 3;

// Beyond these, comparing words by the exact clock would take longer than finding the plan.
constexpr std::int32_t kMostMicroStepsCompared = 8;

}  // namespace

Evaluator::Evaluator(PlanRequest request)
    : request_(std::move(request)),
      base_(base_plan(request_)),
      synchronous_(request_.hardware.device == DeviceKind::Cpu),
      compiled_(std::make_shared<Compiled>()) {
  compiled_->hardware = request_.hardware;
  compiled_->ranks_per_node = request_.ranks_per_node();
  compiled_->segments = batch_of(request_.knobs.micro_batch.value_or(1)).shared.segments;
}

Evaluator::Evaluator(PlanRequest request, const Evaluator& like) : Evaluator(like) {
  const bool shares = request.model.config == like.request_.model.config && request.workload == like.request_.workload &&
                      request.hardware == like.request_.hardware && request.ranks_per_node() == like.request_.ranks_per_node();
  if (!shares) {
    *this = Evaluator(std::move(request));
    return;
  }
  request_ = std::move(request);
  base_ = base_plan(request_);
}

Plan Evaluator::plan_of(const KnobChoice& choice) const {
  Plan plan = base_;
  apply(choice, compiled_->segments, plan);
  return plan;
}

Evaluator::Batch& Evaluator::batch_of(std::int64_t micro_batch) {
  const auto found = compiled_->batches.find(micro_batch);
  if (found != compiled_->batches.end()) return found->second;
  Plan plan = base_;
  plan.micro_batch = micro_batch;
  Batch batch;
  batch.shared.graph = std::make_shared<const OpGraph>(build_graph(graph_request_of(plan)));
  batch.shared.segments = compiled_->batches.empty() ? segments_of(*batch.shared.graph) : compiled_->segments;
  Batch& kept = compiled_->batches[micro_batch] = std::move(batch);
  const Compiled* compiled = compiled_.get();  // outlives the functions, which it owns
  WorkTimes times{
      .kernel_nanoseconds = [compiled](const KernelWork& work) { return kernel_time(work, compiled->hardware).count(); },
      .collective_nanoseconds =
          [compiled](const CollectiveWork& work, std::int32_t degree, std::int32_t stride) {
            return collective_time(work, {.name = "", .degree = degree, .stride = stride}, compiled->hardware,
                                   compiled->ranks_per_node)
                .count();
          },
      .synchronous = synchronous_};
  kept.quick = std::make_unique<QuickForecast>(
      *kept.shared.graph, kept.shared.segments,
      BodyOptions{.reduce = request_.workload.precision.reduce, .rounding_bytes = allocator_rounding_bytes(request_.hardware)},
      std::move(times));
  return kept;
}

const Evaluator::Units& Evaluator::units_of(const KnobChoice& choice) {
  // With one unit for everything the root word means nothing.
  const RootWord root = choice.units.form == UnitsWord::Form::Whole ? RootWord::Joint : choice.root;
  const UnitsKey key{choice.units, root, choice.mesh.shard};
  const auto found = compiled_->units.find(key);
  if (found != compiled_->units.end()) return found->second;
  Plan plan = base_;
  plan.mesh = choice.mesh;
  plan.units = expand_units(choice.units, root, ReshardWord::All, compiled_->segments);
  const OpGraph& graph = *compiled_->batches.begin()->second.shared.graph;
  Units units{.layouts = unit_layouts(graph, compiled_->segments, plan)};
  units.places = parameter_places(graph, units.layouts);
  return compiled_->units[key] = std::move(units);
}

const std::vector<SpanPlan>& Evaluator::spans_of(const RecomputeWord& word) {
  const auto found = compiled_->spans.find(word);
  return found != compiled_->spans.end() ? found->second : compiled_->spans[word] = expand_spans(word, compiled_->segments);
}

ScheduleInput Evaluator::input_of(const KnobChoice& choice) {
  const Units& units = units_of(choice);
  ScheduleInput input{.units = &units.layouts,
                      .places = &units.places,
                      .spans = spans_of(choice.recompute),
                      .device = request_.hardware.device,
                      .precision = request_.workload.precision,
                      .mesh = choice.mesh,
                      .grad_accum = choice.grad_accum,
                      .accum_sync = choice.accum_sync,
                      .prefetch = choice.prefetch,
                      .init = choice.init,
                      .clips = request_.workload.optimizer.clip_norm > 0};
  // The unit of the last block is the last one that holds a segment of a layer.
  SegmentId last_block;
  for (std::size_t i = 0; i < compiled_->segments.all.size(); ++i) {
    if (compiled_->segments.all[i].layer >= 0) last_block = SegmentId(static_cast<std::int64_t>(i));
  }
  for (const UnitLayout& unit : units.layouts) {
    const bool holds_last = std::find(unit.segments.begin(), unit.segments.end(), last_block) != unit.segments.end();
    input.reshard_after_forward.push_back(choice.reshard == ReshardWord::All ||
                                          (choice.reshard == ReshardWord::AllButLast && !holds_last));
  }
  return input;
}

// [Note: which phases can be the peak] Step 2 holds at every task what step 1 holds, and the states from the start; evaluation
// holds what the forward of step 2 holds, or less. Loading and saving have pieces of their own. So three phases decide.
Figures Evaluator::count_bounds(const KnobChoice& choice) {
  QuickForecast& quick = *batch_of(choice.micro_batch).quick;
  const ScheduleInput input = input_of(choice);
  const std::int64_t workspace = workspace_bytes(request_.hardware, Phase::Step2);
  const QuickFigures step = quick.figures(input, Phase::Step2);
  Figures f;
  f.peak_allocated_bytes = std::max({step.peak_bytes + workspace, quick.figures(input, Phase::Save).peak_bytes + workspace,
                                     quick.figures(input, Phase::Load).peak_bytes});
  f.binding_bytes = device_estimate(f.peak_allocated_bytes, choice.mesh, request_.hardware).device.high_bytes;
  if (choice.grad_accum <= kMostTimedMicroSteps) {
    f.least_step = nanoseconds(step.nanoseconds);
  } else {
    f.least_step = clock_of(choice).least_duration(synchronous_);
  }
  return f;
}

StepClock Evaluator::clock_of(const KnobChoice& choice) {
  StepClock clock(request_.hardware, choice.mesh, request_.ranks_per_node());
  ScheduleInput input = input_of(choice);
  input.grad_accum = std::min(input.grad_accum, StepClock::kMicroSteps);
  batch_of(choice.micro_batch).quick->emit(input, Phase::Step2, clock);
  if (choice.grad_accum > StepClock::kMicroSteps) clock.stretch(choice.grad_accum);
  return clock;
}

Figures Evaluator::bounds(const KnobChoice& choice) {
  const auto found = compiled_->bounds.find(choice);
  return found != compiled_->bounds.end() ? found->second : compiled_->bounds[choice] = count_bounds(choice);
}

nanoseconds Evaluator::step_time(const KnobChoice& choice) {
  const auto found = compiled_->step_times.find(choice);
  if (found != compiled_->step_times.end()) return found->second;
  return compiled_->step_times[choice] = clock_of(choice).duration(synchronous_);
}

Figures Evaluator::quick(const KnobChoice& choice) {
  Figures f = bounds(choice);
  f.step = choice.grad_accum <= kMostMicroStepsCompared ? step_time(choice) : f.least_step;
  return f;
}

Lowered Evaluator::lowered(const Plan& plan) {
  const SharedGraph& shared = batch_of(plan.micro_batch).shared;
  return lower(plan, shared.graph, shared.segments);
}

PlannedChoice Evaluator::full(const KnobChoice& choice) {
  PlannedChoice planned{.choice = choice, .plan = plan_of(choice)};
  Plan shortened = planned.plan;
  shortened.grad_accum = std::min(shortened.grad_accum, StepClock::kMicroSteps);
  Batch& batch = batch_of(choice.micro_batch);
  const Lowered lowered = lower_for_forecast(shortened, batch.shared.graph, batch.shared.segments, batch.quick->bodies());
  planned.forecast = forecast_plan(planned.plan, lowered, request_.hardware, capacity_bytes());
  return planned;
}

// A micro-step that adds to gradients of an earlier one runs the same kernels, or an addition more: so all are taken for the first.
nanoseconds Evaluator::compute_floor(const KnobChoice& choice) {
  const std::pair key{choice.recompute, choice.micro_batch};
  const auto found = compiled_->floors.find(key);
  if (found != compiled_->floors.end()) return choice.grad_accum * found->second;
  KnobChoice first = choice;
  first.grad_accum = 1;
  ComputeFloor floor;
  batch_of(choice.micro_batch).quick->emit(input_of(first), Phase::Step2, floor);
  return choice.grad_accum * (compiled_->floors[key] = floor.sum());
}

}  // namespace shardplan
