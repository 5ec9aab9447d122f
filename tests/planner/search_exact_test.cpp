// The search against enumeration: every point of small spaces lowered in full, counted and simulated.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <optional>
#include <tuple>

#include "planner/lowering/check_plan.h"
#include "planner/lowering/memory_count.h"
#include "planner/search/search.h"
#include "simulator/engine.h"
#include "simulator/simulate.h"
#include "tests/planner/tiny_plans.h"

namespace shardplan {
namespace {

using std::chrono::nanoseconds;

// Slow links and a small device, so that every kind of decision matters on a tiny model.
HardwareSpec small_device(DeviceKind device) {
  const LinkSpec link{.name = "wire", .bytes_per_second = 4e8, .latency_seconds = 2e-6};
  return {.id = "small",
          .name = "small device",
          .device = device,
          .compute_capability = "8.0",
          .usable_memory_bytes = std::int64_t{1} << 40,
          .memory_bytes_per_second = 2e9,
          .peak_flops_per_second = {{DType::F32, 2e10}, {DType::BF16, 4e10}},
          .matmul_fraction = 0.7,
          .kernel_launch_seconds = 1e-6,
          .intra_node = link,
          .inter_node = {.name = "net", .bytes_per_second = 1e8, .latency_seconds = 5e-6},
          .host_link = link,
          .devices_per_node = 2,
          .host_memory_bytes = std::int64_t{1} << 40,
          .context = {1000, 2000},
          .communicator = {300, 500},
          .rounding_bytes = device == DeviceKind::Cuda ? 512 : 1};
}

// What a choice needs and takes, by the full program.
struct Judged {
  KnobChoice choice;
  std::int64_t binding_bytes = 0;
  nanoseconds step{0};
};

Judged judge(const KnobChoice& choice, Evaluator& evaluator) {
  const PlanRequest& request = evaluator.request();
  const Plan plan = evaluator.plan_of(choice);
  const Lowered lowered = evaluator.lowered(plan);
  RC_ASSERT(check_plan(plan, lowered).empty());
  Judged judged{.choice = choice};
  std::int64_t allocated = 0;
  for (const LoweredProgram& phase : lowered.phases) {
    const std::int64_t peak = count_memory(phase.program, request.hardware.rounding_bytes).peak_bytes;
    allocated = std::max(allocated, peak + workspace_bytes(request.hardware, phase.program.phase));
    if (phase.program.phase != Phase::Step2) continue;
    const SimulateOptions options{.synchronous = request.hardware.device == DeviceKind::Cpu,
                                  .record_memory = false,
                                  .ranks_per_node = request.ranks_per_node()};
    judged.step = simulate(phase.program, request.hardware, options).duration;
  }
  judged.binding_bytes = device_estimate(allocated, choice.mesh, request.hardware).device.high_bytes;
  return judged;
}

std::vector<KnobChoice> whole_space(const PlanRequest& request, std::int64_t most_micro_batch) {
  const KnobSpace space = knob_space(request);
  std::vector<BatchShape> shapes;
  if (has_free_batch(request)) {
    for (std::int64_t b = 1; b <= most_micro_batch; ++b) {
      for (const BatchShape& shape : shapes_with_micro_batch(request, b)) shapes.push_back(shape);
    }
  } else {
    shapes = batch_shapes(request);
  }
  std::vector<KnobChoice> all;
  for (const MeshDegrees& mesh : space.meshes)
    for (const Wrapping& wrapping : space.wrappings)
      for (const ReshardWord reshard : space.reshards)
        for (const RecomputeWord& recompute : space.recomputes)
          for (const std::int32_t prefetch : space.prefetches)
            for (const BatchShape& shape : shapes)
              all.push_back({.mesh = mesh,
                             .units = wrapping.units,
                             .root = wrapping.root,
                             .reshard = reshard,
                             .recompute = recompute,
                             .micro_batch = shape.micro_batch,
                             .grad_accum = shape.grad_accum,
                             .accum_sync = shape.accum_sync,
                             .prefetch = prefetch,
                             .init = space.init});
  return all;
}

double rate(const KnobChoice& choice, nanoseconds step) {
  return static_cast<double>(choice.micro_batch * choice.grad_accum) / static_cast<double>(step.count());
}

template <class T>
std::optional<T> sometimes(const std::vector<T>& words) {
  return *rc::gen::arbitrary<bool>() ? std::optional<T>(*rc::gen::elementOf(words)) : std::nullopt;
}

PlanRequest any_request() {
  TinyModel tiny{.family = *rc::gen::element<std::string>("llama", "qwen2", "qwen3", "mistral"),
                 .layers = *rc::gen::inRange(1, 4),
                 .tied = *rc::gen::arbitrary<bool>()};
  PlanRequest request;
  request.model = model_from_json(tiny_config(tiny), "tiny", "tiny");
  request.hardware = small_device(*rc::gen::element(DeviceKind::Cuda, DeviceKind::Cpu));
  request.gpus = *rc::gen::element(1, 2, 4);
  request.nodes = request.gpus == 4 ? 2 : 1;
  request.workload.seq_len = *rc::gen::inRange(3, 12);
  request.workload.precision.compute = *rc::gen::element(DType::F32, DType::BF16);
  request.workload.precision.reduce = *rc::gen::element(DType::F32, DType::BF16);
  request.workload.train = {*rc::gen::element<std::string>("all", "all", "last:1", "head")};
  request.objective = *rc::gen::element(Objective::Throughput, Objective::Throughput, Objective::Memory);
  if (*rc::gen::arbitrary<bool>()) {
    request.workload.global_batch = request.gpus * *rc::gen::element(1, 2, 4, 6);
  } else {
    request.knobs.grad_accum = sometimes<std::int32_t>({2, 7});
  }
  const KnobSpace open = knob_space(request);
  FixedKnobs& knobs = request.knobs;
  if (const auto mesh = sometimes(open.meshes)) knobs.shard_degree = mesh->shard;
  if (const auto wrapping = sometimes(open.wrappings)) knobs.units = wrapping->units;
  knobs.reshard = sometimes(open.reshards);
  knobs.recompute = sometimes(open.recomputes);
  knobs.prefetch = sometimes(open.prefetches);
  return request;
}

// The longest path through a step whose collectives are alone on their links.
nanoseconds longest_path(const StepProgram& program, const PlanRequest& request) {
  const bool synchronous = request.hardware.device == DeviceKind::Cpu;
  const ClockProgram clock = clock_program(program, request.hardware, request.ranks_per_node());
  std::vector<nanoseconds> ends, streams(static_cast<std::size_t>(clock.num_streams));
  for (const ClockTask& task : clock.tasks) {
    nanoseconds& stream = streams[synchronous ? 0 : task.stream.at()];
    for (std::int32_t w = task.first_wait; w < task.end_wait; ++w)
      stream = std::max(stream, ends[clock.waits[static_cast<std::size_t>(w)].at()]);
    stream += task.kernels + task.collective.alone();
    ends.push_back(stream);
  }
  return *std::max_element(ends.begin(), ends.end());
}

// A forecast of a shortened accumulation is that of the whole.
void expect_same(const Forecast& a, const Forecast& b) {
  RC_ASSERT(a.phases.size() == b.phases.size());
  for (std::size_t i = 0; i < a.phases.size(); ++i) {
    const PhaseForecast &x = a.phases[i], &y = b.phases[i];
    RC_ASSERT(std::tuple(x.phase, x.peak_requested_bytes, x.peak_allocated_bytes, x.host_peak_bytes, x.peak_task) ==
              std::tuple(y.phase, y.peak_requested_bytes, y.peak_allocated_bytes, y.host_peak_bytes, y.peak_task));
    RC_ASSERT(x.at_peak == y.at_peak);
  }
  RC_ASSERT(std::tuple(a.peak_phase, a.peak_task, a.device_bytes, a.step_seconds, a.model_flops_utilization_fraction) ==
            std::tuple(b.peak_phase, b.peak_task, b.device_bytes, b.step_seconds, b.model_flops_utilization_fraction));
  RC_ASSERT(a.communication.size() == b.communication.size());
  for (std::size_t i = 0; i < a.communication.size(); ++i) {
    const CommunicationLine &x = a.communication[i], &y = b.communication[i];
    RC_ASSERT(std::tuple(x.collective, x.axis, x.calls, x.bytes_per_rank, x.seconds, x.exposed_seconds) ==
              std::tuple(y.collective, y.axis, y.calls, y.bytes_per_rank, y.seconds, y.exposed_seconds));
  }
}

// Quick figures are those of the full program; bounds are on the right side of them.
RC_GTEST_PROP(Search, QuickFiguresEqualTheFullProgram, ()) {
  PlanRequest request = any_request();
  request.objective = Objective::Throughput;
  Evaluator evaluator(request);
  const std::vector<KnobChoice> all = whole_space(request, 3);
  for (int i = 0; i < 8; ++i) {
    const KnobChoice choice = all[*rc::gen::inRange<std::size_t>(0, all.size())];
    const Judged judged = judge(choice, evaluator);
    const Figures figures = evaluator.quick(choice);
    RC_ASSERT(figures.binding_bytes == judged.binding_bytes);
    RC_ASSERT(evaluator.step_time(choice) == judged.step);
    RC_ASSERT(figures.least_step <= judged.step);
    RC_ASSERT(evaluator.compute_floor(choice) <= judged.step);
    const Forecast forecast = evaluator.full(choice).forecast;
    RC_ASSERT(binding_bytes(forecast, request.hardware) == judged.binding_bytes);
    const Plan plan = evaluator.plan_of(choice);
    const Lowered lowered = evaluator.lowered(plan);
    const auto step = std::find_if(lowered.phases.begin(), lowered.phases.end(),
                                   [](const LoweredProgram& p) { return p.program.phase == Phase::Step2; });
    RC_ASSERT(figures.least_step == longest_path(step->program, request));
    expect_same(forecast, forecast_plan(plan, lowered, request.hardware, evaluator.capacity_bytes()));
    RC_ASSERT(forecast.by_category.total() == forecast.device_bytes);
  }
}

// best(search) = best over the whole space of what fits; nothing fits exactly when no point of the space does.
RC_GTEST_PROP(Search, EqualsEnumeration, ()) {
  PlanRequest request = any_request();
  constexpr std::int64_t kMostMicroBatch = 6;
  std::vector<Judged> judged;
  {
    Evaluator evaluator(request);
    for (const KnobChoice& choice : whole_space(request, kMostMicroBatch)) judged.push_back(judge(choice, evaluator));
  }
  // A limit that is exactly what some point with a small batch needs, or a byte less.
  std::vector<Judged> small;
  std::copy_if(judged.begin(), judged.end(), std::back_inserter(small), [](const Judged& j) { return j.choice.micro_batch <= 3; });
  const std::size_t point = *rc::gen::inRange<std::size_t>(0, small.size());
  const std::int64_t limit = small[point].binding_bytes - *rc::gen::element(0, 1);
  request.memory_limit_bytes = limit;
  const auto fits = [&](const Judged& j) { return j.binding_bytes <= limit; };
  RC_PRE(!has_free_batch(request) || std::none_of(judged.begin(), judged.end(), [&](const Judged& j) {
    return j.choice.micro_batch == kMostMicroBatch && fits(j);
  }));

  Evaluator evaluator(request);
  const SearchResult result = search(evaluator);
  std::vector<Judged> fitting;
  std::copy_if(judged.begin(), judged.end(), std::back_inserter(fitting), fits);
  RC_TAG(fitting.empty() ? "nothing fits" : "something fits");
  const std::int64_t least = std::min_element(judged.begin(), judged.end(), [](const Judged& a, const Judged& b) {
                               return a.binding_bytes < b.binding_bytes;
                             })->binding_bytes;
  if (fitting.empty()) {
    RC_ASSERT(!result.best.has_value());
    RC_ASSERT(result.closest->figures.binding_bytes == least);
    return;
  }
  RC_ASSERT(result.best.has_value());
  if (request.objective == Objective::Memory) {
    RC_ASSERT(result.best->figures.binding_bytes == least);
    std::erase_if(fitting, [&](const Judged& j) { return j.binding_bytes > least; });
  }
  const Judged* best = nullptr;
  for (const Judged& j : fitting) {
    if (best == nullptr || rate(j.choice, j.step) > rate(best->choice, best->step) ||
        (rate(j.choice, j.step) == rate(best->choice, best->step) && j.binding_bytes < best->binding_bytes)) {
      best = &j;
    }
  }
  RC_ASSERT(rate(result.best->choice, result.best->figures.step) == rate(best->choice, best->step));
  RC_ASSERT(result.best->figures.binding_bytes == best->binding_bytes);
  // No point of the space gains more than the proven gap.
  if (request.objective == Objective::Throughput) {
    const double gained = rate(best->choice, best->step) / rate(result.best->choice, result.best->figures.step) - 1;
    RC_ASSERT(gained <= result.facts.gap_fraction);
  }
  // What was found is what the full program needs and takes, and a lawful plan.
  const Judged found = judge(result.best->choice, evaluator);
  RC_ASSERT(found.binding_bytes == result.best->figures.binding_bytes);
  RC_ASSERT(found.step == result.best->figures.step);
}

// One request with more memory is never slower.
RC_GTEST_PROP(Search, MoreMemoryIsNeverSlower, ()) {
  PlanRequest request = any_request();
  request.objective = Objective::Throughput;
  Evaluator open(request);
  const std::vector<KnobChoice> all = whole_space(request, 3);
  std::int64_t less = judge(all[*rc::gen::inRange<std::size_t>(0, all.size())], open).binding_bytes,
               more = judge(all[*rc::gen::inRange<std::size_t>(0, all.size())], open).binding_bytes;
  if (less > more) std::swap(less, more);
  const auto best_with = [&](std::int64_t limit) {
    PlanRequest limited = request;
    limited.memory_limit_bytes = limit;
    Evaluator evaluator(limited);
    const SearchResult result = search(evaluator);
    return result.best ? rate(result.best->choice, result.best->figures.step) : 0.0;
  };
  RC_ASSERT(best_with(less) <= best_with(more));
}

}  // namespace
}  // namespace shardplan
