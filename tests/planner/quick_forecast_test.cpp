#include "planner/lowering/quick_forecast.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <chrono>
#include <cstdio>

#include "simulator/collectives.h"
#include "simulator/cost_model.h"
#include "simulator/simulate.h"
#include "tests/planner/tiny_plans.h"

namespace shardplan {
namespace {

HardwareSpec round_numbers() {
  HardwareSpec h;
  h.id = "test";
  h.usable_memory_bytes = std::int64_t{1} << 30;
  h.memory_bytes_per_second = 1e9;
  h.peak_flops_per_second = {{DType::F32, 1e9}, {DType::BF16, 2e9}};
  h.intra_node = {.name = "link", .bytes_per_second = 1e8, .latency_seconds = 1e-6};
  h.inter_node = h.intra_node;
  h.host_link = h.intra_node;
  h.devices_per_node = 64;
  return h;
}

WorkTimes times_on(const HardwareSpec& hardware, bool synchronous) {
  return {.kernel_nanoseconds = [&hardware](const KernelWork& w) { return kernel_time(w, hardware).count(); },
          .collective_nanoseconds =
              [&hardware](const CollectiveWork& w, std::int32_t degree, std::int32_t stride) {
                return collective_time(w, {.degree = degree, .stride = stride}, hardware, hardware.devices_per_node).count();
              },
          .synchronous = synchronous};
}

// One task after the other, nothing shares a link: the quick time is the simulator's, to the nanosecond, for any number of
// micro-steps.
RC_GTEST_PROP(QuickForecast, SynchronousTimeEqualsTheSimulators, ()) {
  const TinyJob job = *any_job();
  const TinyCase tiny = tiny_case(job, *any_choice());
  const Lowered lowered = tiny.lowered();
  const HardwareSpec hardware = round_numbers();
  QuickForecast quick(*tiny.graph, tiny.segments, {.reduce = job.precision.reduce}, times_on(hardware, true));
  const ScheduleInput input = schedule_input(tiny.plan, lowered.units, lowered.places);
  for (const LoweredProgram& phase : lowered.phases) {
    const Timeline simulated = simulate(phase.program, hardware,
                                        {.synchronous = true, .record_memory = false, .ranks_per_node = hardware.devices_per_node});
    const QuickFigures figures = quick.figures(input, phase.program.phase);
    RC_ASSERT(figures.nanoseconds == simulated.duration.count());
    RC_ASSERT(figures.peak_bytes == simulated.peak_requested_bytes);
  }
}

// Overlapping streams: never longer than one after the other, never shorter than the longest stream alone.
RC_GTEST_PROP(QuickForecast, StreamsOverlapButDoNotShortenWork, ()) {
  TinyJob job = *any_job();
  const TinyCase tiny = tiny_case(job, *any_choice());
  const Lowered lowered = tiny.lowered();
  const HardwareSpec hardware = round_numbers();
  QuickForecast in_order(*tiny.graph, tiny.segments, {.reduce = job.precision.reduce}, times_on(hardware, true));
  QuickForecast streams(*tiny.graph, tiny.segments, {.reduce = job.precision.reduce}, times_on(hardware, false));
  const ScheduleInput input = schedule_input(tiny.plan, lowered.units, lowered.places);
  const std::int64_t overlapped = streams.figures(input, Phase::Step2).nanoseconds;
  RC_ASSERT(overlapped <= in_order.figures(input, Phase::Step2).nanoseconds);
  for (const LoweredProgram& phase : lowered.phases) {
    if (phase.program.phase != Phase::Step2 || tiny.plan.grad_accum > 3) continue;
    std::vector<std::int64_t> busy(phase.program.streams.size(), 0);
    for (const Task& task : phase.program.tasks)
      busy[task.stream.at()] += task_time(task, phase.program.mesh, hardware, hardware.devices_per_node).count();
    for (const std::int64_t b : busy) RC_ASSERT(overlapped >= b);
  }
}

// Not a bound worth defending on a loaded machine, but a collapse would show: a search asks thousands of times.
TEST(QuickForecast, AnswersForThirtyTwoLayersInMicroseconds) {
  TinyJob job;
  job.model.layers = 32;
  job.device = DeviceKind::Cuda;
  KnobChoice choice{.mesh = {.shard = 4}};
  const TinyCase tiny = tiny_case(job, choice);
  const Lowered lowered = tiny.lowered();
  const ScheduleInput input = schedule_input(tiny.plan, lowered.units, lowered.places);
  const HardwareSpec hardware = round_numbers();
  QuickForecast quick(*tiny.graph, tiny.segments, {.reduce = DType::F32, .rounding_bytes = 512}, times_on(hardware, false));
  (void)quick.figures(input, Phase::Step2);  // compiles the bodies
  double least_seconds = 1;
  for (int run = 0; run < 20; ++run) {
    const auto start = std::chrono::steady_clock::now();
    (void)quick.figures(input, Phase::Step2);
    least_seconds = std::min(least_seconds, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  fmt::print("quick forecast of 32 layers: {:.1f} us\n", least_seconds * 1e6);
  EXPECT_LT(least_seconds, 1e-3);
}

}  // namespace
}  // namespace shardplan
