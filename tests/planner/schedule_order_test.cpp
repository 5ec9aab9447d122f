// The order of tasks and their waits, on a model small enough to be derived by hand: embed, one block of two halves, norm, head.
// The norm's weight is read where the head begins: up to there the final norm needs no unit.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "planner/lowering/check_plan.h"
#include "planner/lowering/memory_count.h"
#include "tests/planner/tiny_plans.h"

namespace shardplan {
namespace {

// "forward of embed", one a line; what a task waits on behind it.
std::string order_of(const TinyCase& tiny, Phase phase, bool with_waits) {
  std::string text;
  for (const LoweredProgram& p : tiny.lowered().phases) {
    if (p.program.phase != phase) continue;
    for (const Task& task : p.program.tasks) {
      text += task.label;
      if (with_waits)
        for (const TaskId w : task.waits_on) text += " < " + p.program.tasks[w.at()].label;
      text += "\n";
    }
  }
  return text;
}

TinyCase sharded(std::int32_t prefetch, const std::string& recompute, DeviceKind device = DeviceKind::Cpu) {
  KnobChoice choice{.mesh = {.shard = 2}, .prefetch = prefetch};
  choice.recompute = *recompute_from_text(recompute);
  return tiny_case({.model = {.layers = 1}, .device = device}, choice);
}

// The head is not dropped between its forward and its backward: nothing stands in between. Embedding's backward reads no weight.
TEST(Schedule, GathersBeforeUseAndDropsAfterTheLast) {
  EXPECT_EQ(
      order_of(sharded(0, "none"), Phase::Step2, false),
      "input\n"
      "gather of embed\nforward of embed\nfree of embed\n"
      "gather of blocks.0\nforward of layers.0.attention\nforward of layers.0.mlp\nfree of blocks.0\n"
      "forward of norm\ngather of head\nforward of head\nbackward of head\nfree of head\nreduce-scatter of head\nbackward of norm\n"
      "gather of blocks.0\nbackward of layers.0.mlp\nbackward of layers.0.attention\nfree of blocks.0\nreduce-scatter of blocks.0\n"
      "backward of embed\nreduce-scatter of embed\n"
      "gradient norm\noptimizer step of embed\noptimizer step of blocks.0\noptimizer step of head\nzeroing of gradients\n");
}

// Uses in order: embed, blocks.0, head forward, head backward, blocks.0 backward. One ahead: each gather stands before the use
// before.
TEST(Schedule, PrefetchMovesAGatherBeforeTheUseBefore) {
  EXPECT_EQ(order_of(sharded(1, "none"), Phase::Step2, true),
            "input\n"
            "gather of embed\ngather of blocks.0\nforward of embed < gather of embed\nfree of embed\n"
            "gather of head < free of embed\n"
            "forward of layers.0.attention < gather of blocks.0\nforward of layers.0.mlp\nfree of blocks.0\n"
            "forward of norm\nforward of head < gather of head\n"
            "gather of blocks.0 < free of blocks.0\n"
            "backward of head < gather of head\nfree of head\nreduce-scatter of head < backward of head\nbackward of norm\n"
            "backward of layers.0.mlp < gather of blocks.0\nbackward of layers.0.attention\nfree of blocks.0\n"
            "reduce-scatter of blocks.0 < backward of layers.0.attention\n"
            "backward of embed\nreduce-scatter of embed < backward of embed\n"
            "gradient norm < reduce-scatter of embed\n"
            "optimizer step of embed\noptimizer step of blocks.0\noptimizer step of head\nzeroing of gradients\n");
}

TEST(Schedule, ASpanRunsAgainJustBeforeItsBackward) {
  const std::string order = order_of(sharded(0, "full"), Phase::Step2, false);
  EXPECT_NE(order.find("gather of blocks.0\nrecompute of layers.0.attention to layers.0.mlp\nbackward of layers.0.mlp\nbackward of "
                       "layers.0.attention\n"),
            std::string::npos)
      << order;
}

TEST(Schedule, EvaluationDropsEveryUnitAfterItsForward) {
  EXPECT_EQ(order_of(sharded(0, "full"), Phase::Eval, false),
            "input\n"
            "gather of embed\nforward of embed\nfree of embed\n"
            "gather of blocks.0\nforward of layers.0.attention\nforward of layers.0.mlp\nfree of blocks.0\n"
            "forward of norm\ngather of head\nforward of head\nfree of head\n");
}

TEST(Schedule, OneRankWithoutCastNeitherGathersNorReduces) {
  const TinyCase tiny = tiny_case({.model = {.layers = 1}, .precision = {.compute = DType::F32}}, {});
  EXPECT_EQ(order_of(tiny, Phase::Step2, false),
            "input\nforward of embed\nforward of layers.0.attention\nforward of layers.0.mlp\nforward of norm\nforward of head\n"
            "backward of head\nbackward of norm\nbackward of layers.0.mlp\nbackward of layers.0.attention\nbackward of embed\n"
            "gradient norm\noptimizer step of embed\noptimizer step of blocks.0\noptimizer step of head\nzeroing of gradients\n");
}

// With everything below the last layer frozen nothing runs backward there, and the frozen units are dropped after forward.
TEST(Schedule, NothingRunsBackwardBelowTheLowestTrainableParameter) {
  const TinyCase tiny = tiny_case({.model = {.layers = 2}, .train = {"last:1"}}, {.mesh = {.shard = 2}, .prefetch = 0});
  const std::string order = order_of(tiny, Phase::Step2, false);
  EXPECT_EQ(order.find("backward of layers.0"), std::string::npos) << order;
  EXPECT_EQ(order.find("backward of embed"), std::string::npos) << order;
  EXPECT_EQ(order.find("reduce-scatter of blocks.0"), std::string::npos) << order;
  EXPECT_EQ(order.find("reduce-scatter of head"), std::string::npos) << order;
  EXPECT_NE(order.find("reduce-scatter of blocks.1"), std::string::npos) << order;
}

// On CUDA the reduction of one unit runs beside the next backward: two full gradients are alive, and the third waits for the first.
TEST(Schedule, OnCudaTwoFullGradientsAreInFlightAtMost) {
  KnobChoice choice{.mesh = {.shard = 2}, .prefetch = 0};
  for (const DeviceKind device : {DeviceKind::Cpu, DeviceKind::Cuda}) {
    const TinyCase tiny = tiny_case({.model = {.layers = 4}, .device = device}, choice);
    const Lowered lowered = tiny.lowered();
    const LoweredProgram& step = lowered.phases[2];
    int alive = 0, most = 0;
    for (const Task& task : step.program.tasks) {
      for (const Effect& effect : task.effects) {
        if (step.roles[effect.buffer.at()].use != BufferUse::FullGrad) continue;
        alive += effect.kind == EffectKind::Allocate ? 1 : -1;
        most = std::max(most, alive);
      }
    }
    EXPECT_EQ(most, device == DeviceKind::Cpu ? 1 : 2);
    EXPECT_EQ(alive, 0);
  }
  const std::string order = order_of(tiny_case({.model = {.layers = 4}, .device = DeviceKind::Cuda}, choice), Phase::Step2, true);
  EXPECT_NE(order.find("backward of layers.2.mlp < reduce-scatter of head < gather of blocks.2\n"), std::string::npos) << order;
}

// accumulate last: full gradients live through the micro-steps and are reduced once; every: reduced in each.
TEST(Schedule, AccumulationReducesInTheLastMicroStepOrInEach) {
  KnobChoice choice{.mesh = {.shard = 2}, .grad_accum = 3};
  const auto num_reductions = [&](AccumSync sync) {
    choice.accum_sync = sync;
    const std::string order = order_of(tiny_case({.model = {.layers = 1}}, choice), Phase::Step2, false);
    std::size_t count = 0;
    for (std::size_t at = order.find("reduce-scatter"); at != std::string::npos; at = order.find("reduce-scatter", at + 1)) ++count;
    return count;
  };
  EXPECT_EQ(num_reductions(AccumSync::Last), 3u);   // units
  EXPECT_EQ(num_reductions(AccumSync::Every), 9u);  // units x micro-steps
}

// At the end of a backward without reduction in between a rank holds r bytes for every trainable element, padded.
TEST(Schedule, AccumulationWithoutReductionHoldsFullGradients) {
  KnobChoice choice{.mesh = {.shard = 2}, .grad_accum = 2, .accum_sync = AccumSync::Last};
  const TinyCase tiny = tiny_case({}, choice);
  const Lowered lowered = tiny.lowered();
  const LoweredProgram& step = lowered.phases[2];
  std::int64_t padded = 0;
  for (const UnitLayout& unit : lowered.units) padded += unit.groups.front().padded_numel;
  std::int64_t level = 0, before_second = -1;
  for (const Task& task : step.program.tasks) {
    if (task.kind == TaskKind::Input && task.micro_step == 1) before_second = level;
    for (const Effect& effect : task.effects) {
      if (step.program.buffers[effect.buffer.at()].category == MemoryCategory::UnshardedGrad)
        level += (effect.kind == EffectKind::Allocate ? 1 : -1) * step.program.buffers[effect.buffer.at()].bytes;
    }
  }
  EXPECT_EQ(before_second, 4 * padded);
  EXPECT_EQ(level, 0);
}

}  // namespace
}  // namespace shardplan
