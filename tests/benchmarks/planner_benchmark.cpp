// Time of what the planner does inside one answer: graph, lowering, count, simulation, allocator replay. Items are ops or tasks.
#include <benchmark/benchmark.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "core/hardware_spec.h"
#include "planner/graph/segments.h"
#include "planner/lowering/lowered_program.h"
#include "planner/lowering/memory_count.h"
#include "planner/search/evaluate.h"
#include "planner/search/search.h"
#include "simulator/allocator_replay.h"
#include "simulator/simulate.h"

namespace shardplan {
namespace {

const std::filesystem::path kConfigs = std::filesystem::path(SHARDPLAN_SOURCE_DIR) / "configs";

PlanRequest request_for(const std::string& alias, std::int32_t gpus) {
  PlanRequest request;
  request.model = find_model(alias, kConfigs / "models").spec;
  request.hardware = hardware_by_id(kConfigs / "hardware", "h100-80g");
  request.gpus = gpus;
  request.nodes = (gpus + 7) / 8;
  return request;
}

// Fully sharded, every block recomputed.
Plan plan_for(const std::string& alias, std::int32_t gpus) {
  KnobChoice choice;
  choice.mesh.shard = gpus;
  choice.recompute.form = RecomputeWord::Form::Full;
  return Evaluator(request_for(alias, gpus)).plan_of(choice);
}

void BM_BuildGraph(benchmark::State& state, const std::string& alias) {
  const GraphRequest request = graph_request_of(plan_for(alias, 8));
  std::size_t ops = 0;
  for (auto _ : state) ops = build_graph(request).ops.size();
  state.counters["ops"] = static_cast<double>(ops);
}

void BM_Lower(benchmark::State& state, const std::string& alias, std::int32_t gpus) {
  const Plan plan = plan_for(alias, gpus);
  const Lowered first = lower(plan);
  for (auto _ : state) benchmark::DoNotOptimize(lower(plan, first.graph, first.segments));
  state.counters["tasks"] = static_cast<double>(first.phases[2].program.tasks.size());
}

void BM_Search(benchmark::State& state, const std::string& alias, std::int32_t gpus) {
  const PlanRequest request = request_for(alias, gpus);
  SearchFacts facts;
  for (auto _ : state) {
    Evaluator evaluator(request);
    facts = search(evaluator).facts;
  }
  state.counters["space"] = static_cast<double>(facts.space);
  state.counters["evaluated"] = static_cast<double>(facts.evaluated);
}

const StepProgram& step2(const Lowered& lowered) {
  for (const LoweredProgram& phase : lowered.phases)
    if (phase.program.phase == Phase::Step2) return phase.program;
  return lowered.phases.front().program;
}

void BM_Count(benchmark::State& state, const std::string& alias, std::int32_t gpus) {
  const Lowered lowered = lower(plan_for(alias, gpus));
  for (auto _ : state) benchmark::DoNotOptimize(count_memory(step2(lowered), 512));
}

void BM_Simulate(benchmark::State& state, const std::string& alias, std::int32_t gpus) {
  const Lowered lowered = lower(plan_for(alias, gpus));
  const HardwareSpec hardware = hardware_by_id(kConfigs / "hardware", "h100-80g");
  for (auto _ : state) benchmark::DoNotOptimize(simulate(step2(lowered), hardware));
}

void BM_ReplayAllocator(benchmark::State& state, const std::string& alias, std::int32_t gpus) {
  const Lowered lowered = lower(plan_for(alias, gpus));
  for (auto _ : state) benchmark::DoNotOptimize(replay_allocator(step2(lowered), {}));
}

BENCHMARK_CAPTURE(BM_BuildGraph, llama3_8b, "llama3-8b")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_BuildGraph, llama3_70b, "llama3-70b")->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_Lower, llama3_8b_on_4, "llama3-8b", 4)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_Lower, llama3_70b_on_64, "llama3-70b", 64)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_Search, llama3_8b_on_4, "llama3-8b", 4)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_Search, llama3_70b_on_64, "llama3-70b", 64)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_Count, llama3_8b_on_4, "llama3-8b", 4)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_Count, llama3_70b_on_64, "llama3-70b", 64)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_Simulate, llama3_8b_on_4, "llama3-8b", 4)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_Simulate, llama3_70b_on_64, "llama3-70b", 64)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_ReplayAllocator, llama3_8b_on_4, "llama3-8b", 4)->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(BM_ReplayAllocator, llama3_70b_on_64, "llama3-70b", 64)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace shardplan

BENCHMARK_MAIN();
