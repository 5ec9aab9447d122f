// Laws of the schedule of stock FSDP2: who is alive when, derived from the rules of docs/schedule_fsdp2.md.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <set>

#include "core/error.h"
#include "planner/graph/stock_kernels.h"
#include "planner/lowering/memory_count.h"
#include "planner/lowering/schedules/fsdp2_projection.h"
#include "simulator/allocator_replay.h"
#include "tests/core/thrown.h"
#include "tests/planner/tiny_plans.h"

namespace shardplan {
namespace {

// A model of equal layers without grouped heads, bf16 compute on fp32 shards.
struct Stock {
  OpGraph graph;
  Segments segments;
};
Stock stock(const TinyModel& model, const std::vector<std::string>& train = {"all"}) {
  GraphRequest request;
  request.model = model_from_json(tiny_config(model), "tiny", "tiny");
  request.table = parameter_table(request.model);
  select_trainable(request.table, request.model, train, {});
  request.micro_batch = 2;
  request.seq_len = 8;
  request.compute = DType::BF16;
  request.kernels = stock_kernels(request.model, {.compute = DType::BF16, .seq_len = 8});
  Stock made{build_graph(request), {}};
  made.segments = segments_of(made.graph);
  return made;
}

Fsdp2Switches four_ranks() { return {.mesh = {.shard = 4}, .param_dtype = DType::BF16, .reduce_dtype = DType::F32}; }

std::int64_t bytes_of(const OpGraph& graph, DType dtype, auto selects) {
  std::int64_t numel = 0;
  for (const Parameter& p : graph.table.parameters)
    if (selects(p)) numel += p.numel();
  return numel * element_bytes(dtype);
}

struct Moment {
  std::string task;
  CategoryBytes level;  // highest total inside the task
};
std::vector<Moment> moments(const StepProgram& program) {
  CategoryBytes level;
  std::vector<Moment> result;
  for (const BufferId id : program.resident) level[program.buffers[id.at()].category] += program.buffers[id.at()].bytes;
  for (const Task& task : program.tasks) {
    Moment moment{task.label, level};
    for (const Effect& effect : task.effects) {
      const Buffer& buffer = program.buffers[effect.buffer.at()];
      level[buffer.category] += effect.kind == EffectKind::Allocate ? buffer.bytes : -buffer.bytes;
      if (level.total() > moment.level.total()) moment.level = level;
    }
    result.push_back(moment);
  }
  return result;
}

const Moment& moment_of(const std::vector<Moment>& all, const std::string& task) {
  const auto found = std::find_if(all.begin(), all.end(), [&](const Moment& m) { return m.task == task; });
  CHECK(found != all.end(), "the program has a task " + task);
  return *found;
}

// forward, unit i:  gather(i) | copy-out(i) | compute
//   All Gather      G_{i-1} + G_i          (the cast is gone when the gather is issued)
//   Unsharded Param P_root + P_i           (P_{i-1} is resharded)
TEST(Fsdp2Laws, ACopyOutInForwardHoldsThreeUnitsAndTheRoot) {
  const Stock s = stock({.hidden = 32, .layers = 3, .heads = 4, .kv_heads = 4, .mlp = 64, .vocabulary = 40});
  const std::vector<Moment> all = moments(lower_fsdp2_step(s.graph, s.segments, four_ranks(), Phase::Step2).lowered.program);
  const std::int64_t layer = bytes_of(s.graph, DType::BF16, [](const Parameter& p) { return p.layer == 1; });
  const std::int64_t root = bytes_of(s.graph, DType::BF16, [](const Parameter& p) { return p.layer < 0; });
  const CategoryBytes& second = moment_of(all, "copy-out of layers.1").level;
  EXPECT_EQ(second[MemoryCategory::AllGather], 2 * layer);
  EXPECT_EQ(second[MemoryCategory::UnshardedParam], root + layer);
  const CategoryBytes& first = moment_of(all, "copy-out of layers.0").level;
  EXPECT_EQ(first[MemoryCategory::AllGather], root + layer);
  // The gather itself: the previous output, its own, and a cast of a quarter of it.
  EXPECT_EQ(moment_of(all, "gather of layers.1").level[MemoryCategory::AllGather], 2 * layer + layer / 4);
}

// Packing: reduce input r * U beside b * U gradients; of them the last parameter's stays until the reduction has been issued.
TEST(Fsdp2Laws, TheLastGradientOutlivesThePacking) {
  const Stock s = stock({.hidden = 32, .layers = 2, .heads = 4, .kv_heads = 4, .mlp = 64, .vocabulary = 40});
  const StepProgram program = lower_fsdp2_step(s.graph, s.segments, four_ranks(), Phase::Step2).lowered.program;
  const std::vector<Moment> all = moments(program);
  const auto in_layer = [](const Parameter& p) { return p.layer == 1; };
  EXPECT_EQ(moment_of(all, "packing of gradients of layers.1").level[MemoryCategory::ReduceScatter],
            bytes_of(s.graph, DType::F32, in_layer));
  const auto packing = std::find_if(program.tasks.begin(), program.tasks.end(),
                                    [](const Task& t) { return t.label == "packing of gradients of layers.1"; });
  const auto reduction = packing + 1;
  ASSERT_EQ(reduction->label, "reduce-scatter of layers.1");
  const auto num_layer_parameters =
      static_cast<std::int64_t>(std::count_if(s.graph.table.parameters.begin(), s.graph.table.parameters.end(), in_layer));
  EXPECT_EQ(
      std::count_if(packing->effects.begin(), packing->effects.end(), [](const Effect& e) { return e.kind == EffectKind::Free; }),
      num_layer_parameters - 1);
  // The last parameter of a layer is its second norm.
  ASSERT_EQ(std::count_if(reduction->effects.begin(), reduction->effects.end(),
                          [](const Effect& e) { return e.kind == EffectKind::Free; }),
            1);
  const auto freed = std::find_if(reduction->effects.begin(), reduction->effects.end(),
                                  [](const Effect& e) { return e.kind == EffectKind::Free; });
  EXPECT_EQ(program.buffers[freed->buffer.at()].bytes, 32 * element_bytes(DType::BF16));
}

// Sync off: after the first micro-step all gradients stay, whole and in the reduce dtype.
TEST(Fsdp2Laws, WithoutReductionWholeGradientsStayInTheReduceDtype) {
  const Stock s = stock({.hidden = 32, .layers = 2, .heads = 4, .kv_heads = 4, .mlp = 64, .vocabulary = 40});
  Fsdp2Switches switches = four_ranks();
  switches.micro_steps = 3;
  switches.reduces_every_micro_step = false;
  const Fsdp2Program step = lower_fsdp2_step(s.graph, s.segments, switches, Phase::Step2);
  CategoryBytes level;
  const StepProgram& program = step.lowered.program;
  for (std::int32_t t = 0; t <= step.after_backward[0].value; ++t)
    for (const Effect& e : program.tasks[static_cast<std::size_t>(t)].effects)
      level[program.buffers[e.buffer.at()].category] +=
          (e.kind == EffectKind::Allocate ? 1 : -1) * program.buffers[e.buffer.at()].bytes;
  EXPECT_EQ(level[MemoryCategory::UnshardedGrad], bytes_of(s.graph, DType::F32, [](const Parameter&) { return true; }));
  EXPECT_EQ(level[MemoryCategory::ShardedGrad], 0);
}

// Hybrid with a cast: every unit keeps its all-reduced stretch, r * U / N, until the end of backward.
TEST(Fsdp2Laws, HybridShardingKeepsTheReducedStretchesOfAllUnits) {
  const Stock s = stock({.hidden = 32, .layers = 3, .heads = 4, .kv_heads = 4, .mlp = 64, .vocabulary = 40});
  Fsdp2Switches switches = four_ranks();
  switches.stored = DType::BF16;
  switches.param_dtype = DType::BF16;
  const std::int64_t layer = bytes_of(s.graph, DType::F32, [](const Parameter& p) { return p.layer == 0; });
  const auto kept = [&](std::int32_t replicate) {
    switches.mesh.replicate = replicate;
    const std::vector<Moment> all = moments(lower_fsdp2_step(s.graph, s.segments, switches, Phase::Step2).lowered.program);
    return moment_of(all, "packing of gradients of layers.0").level[MemoryCategory::ReduceScatter];
  };
  EXPECT_EQ(kept(2) - kept(1), 2 * layer / 4);  // of layers 2 and 1
}

// Fused AdamW: 2 moments of the valid rows, and a counter for each parameter.
TEST(Fsdp2Laws, StatesFollowTheValidRowsOfARank) {
  const Stock s = stock({.hidden = 20, .layers = 1, .heads = 2, .kv_heads = 2, .mlp = 18, .vocabulary = 37});
  std::int64_t over_ranks = 0, num_parameters = 0;
  for (const Parameter& p : s.graph.table.parameters) num_parameters += p.numel() > 0 ? 1 : 0;
  for (std::int32_t rank = 0; rank < 4; ++rank) {
    Fsdp2Switches switches = four_ranks();
    switches.shard_rank = rank;
    const StepProgram program = lower_fsdp2_step(s.graph, s.segments, switches, Phase::Step2).lowered.program;
    for (const BufferId id : program.resident)
      if (program.buffers[id.at()].category == MemoryCategory::OptState) over_ranks += program.buffers[id.at()].bytes;
  }
  EXPECT_EQ(over_ranks, bytes_of(s.graph, DType::F32, [](const Parameter&) { return true; }) * 2 +
                            4 * num_parameters * element_bytes(DType::F32));
}

// 12 B per logit at the start of backward (log-probabilities, incoming gradient, result), for the tokens of one piece only.
TEST(Fsdp2Laws, AChunkedLossHoldsTheLogitsOfOnePiece) {
  const std::int64_t tokens = 16, vocabulary = 4000;
  // Without the head's gradient, which would hide it.
  const Stock frozen = stock({.hidden = 8, .layers = 1, .heads = 2, .kv_heads = 2, .mlp = 8, .vocabulary = 4000}, {"last:1"});
  const auto peak = [&](std::int64_t chunk) {
    Fsdp2Switches switches = four_ranks();
    switches.chunk_tokens = chunk;
    std::int64_t highest = 0;
    for (const Moment& m : moments(lower_fsdp2_step(frozen.graph, frozen.segments, switches, Phase::Step2).lowered.program))
      if (m.task == "backward of head")
        highest = std::max(highest, m.level[MemoryCategory::Temp] + m.level[MemoryCategory::Activation]);
    return highest;
  };
  // 8 B of gradients and 4 B of log-probabilities a logit; half the tokens, half of that, and the first piece's gradient of hidden
  // states.
  EXPECT_GE(peak(tokens), 12 * tokens * vocabulary);
  EXPECT_EQ(peak(tokens) - peak(tokens / 2), 6 * tokens * vocabulary - tokens / 2 * 8 * element_bytes(DType::BF16));
}

std::multiset<std::string> left_over(const StepProgram& program) {
  std::vector<bool> alive(program.buffers.size(), false);
  for (const BufferId id : program.resident) alive[id.at()] = true;
  for (const Task& task : program.tasks)
    for (const Effect& e : task.effects) alive[e.buffer.at()] = e.kind == EffectKind::Allocate;
  std::multiset<std::string> result;
  for (std::size_t b = 0; b < alive.size(); ++b)
    if (alive[b])
      result.insert(std::string(category_name(program.buffers[b].category)) + " " + std::to_string(program.buffers[b].bytes));
  return result;
}

std::multiset<std::string> residents(const StepProgram& program) {
  std::multiset<std::string> result;
  for (const BufferId id : program.resident)
    result.insert(std::string(category_name(program.buffers[id.at()].category)) + " " +
                  std::to_string(program.buffers[id.at()].bytes));
  return result;
}

// Whatever the plan: the projection lowers to lawful programs, step 1 leaves exactly what step 2 finds, step 2 leaves what it
// found, and the allocator can replay them.
RC_GTEST_PROP(Fsdp2Properties, ProjectedPlansAreLawfulAndLeakNothing, ()) {
  TinyJob job = *any_job();
  job.device = DeviceKind::Cuda;
  job.precision.state = job.precision.stored;
  const KnobChoice choice = *any_choice();
  const TinyCase tiny = tiny_case(job, choice);
  const Lowered lowered = lower_fsdp2(tiny.plan);
  RC_ASSERT(lowered.phases.size() == 2U);
  const StepProgram& first = lowered.phases[0].program;
  const StepProgram& second = lowered.phases[1].program;
  RC_ASSERT(left_over(first) == residents(second));
  RC_ASSERT(left_over(second) == residents(second));
  const std::vector<StepProgram> both{first, second};
  const AllocatorReplay replay = replay_allocator(both, CachingAllocatorOptions{});
  RC_ASSERT(!replay.failure.has_value());
  RC_ASSERT(replay.by_program[1].requested.bytes == count_memory(second).peak_bytes);
}

// More shard ranks never need more at rest.
RC_GTEST_PROP(Fsdp2Properties, MoreShardsNeverNeedMoreAtRest, ()) {
  TinyJob job = *any_job();
  job.device = DeviceKind::Cuda;
  KnobChoice choice = *any_choice();
  choice.mesh.shard = *rc::gen::element(1, 2, 3, 4);
  const auto at_rest = [&](std::int32_t shard) {
    choice.mesh.shard = shard;
    const StepProgram program = lower_fsdp2(tiny_case(job, choice).plan).phases[1].program;
    std::int64_t bytes = 0;
    for (const BufferId id : program.resident) bytes += program.buffers[id.at()].bytes;
    return bytes;
  };
  const std::int32_t shard = choice.mesh.shard;
  RC_ASSERT(at_rest(2 * shard) <= at_rest(shard));
}

// Adding gradients in place never needs more than adding them beside.
RC_GTEST_PROP(Fsdp2Properties, AddingInPlaceNeverNeedsMore, ()) {
  TinyJob job = *any_job();
  job.device = DeviceKind::Cuda;
  const TinyCase tiny = tiny_case(job, *any_choice());
  const Lowered lowered = lower_fsdp2(tiny.plan);
  Fsdp2Switches switches = project_on_fsdp2(tiny.plan, lowered.segments);
  const std::int64_t in_place =
      count_memory(lower_fsdp2_step(*lowered.graph, lowered.segments, switches, Phase::Step2).lowered.program).peak_bytes;
  RC_ASSERT(in_place == count_memory(lowered.phases[1].program).peak_bytes);
  switches.adds_in_place = false;
  RC_ASSERT(in_place <=
            count_memory(lower_fsdp2_step(*lowered.graph, lowered.segments, switches, Phase::Step2).lowered.program).peak_bytes);
}

TEST(Fsdp2Projection, WordsOfAPlanBecomeSwitches) {
  TinyJob job{.model = {.layers = 4}, .device = DeviceKind::Cuda};
  KnobChoice choice{.mesh = {.shard = 2, .replicate = 3}};
  choice.units = *units_from_text("blocks:2");
  choice.root = RootWord::Joint;
  choice.reshard = ReshardWord::None;
  choice.recompute = *recompute_from_text("halves:mlp");
  choice.grad_accum = 2;
  choice.accum_sync = AccumSync::Last;
  const TinyCase tiny = tiny_case(job, choice);
  const Fsdp2Switches switches = project_on_fsdp2(tiny.plan, tiny.segments);
  EXPECT_EQ(switches.wrap, Fsdp2Wrap::Blocks);
  EXPECT_EQ(switches.layers_per_unit, 2);
  EXPECT_EQ(switches.by_layer, std::vector<ReshardAfterForward>(4, {.kind = ReshardAfterForward::Kind::Keep}));
  EXPECT_EQ(switches.checkpointed, std::vector<bool>(4, true));
  EXPECT_EQ(switches.micro_steps, 2);
  EXPECT_FALSE(switches.reduces_every_micro_step);
  choice.root = RootWord::Split;
  choice.units = *units_from_text("halves");
  const TinyCase split = tiny_case(job, choice);
  EXPECT_EQ(project_on_fsdp2(split.plan, split.segments).wrap, Fsdp2Wrap::EmbedBlocksHead);
  EXPECT_EQ(project_on_fsdp2(split.plan, split.segments).layers_per_unit, 1);
  choice.units = *units_from_text("whole");
  choice.root = RootWord::Joint;
  const TinyCase whole = tiny_case(job, choice);
  EXPECT_EQ(project_on_fsdp2(whole.plan, whole.segments).wrap, Fsdp2Wrap::Root);
}

TEST(Fsdp2Projection, WhatStockCodeHasNotIsRefusedWordByWord) {
  TinyCase cpu = tiny_case({.device = DeviceKind::Cpu}, {});
  EXPECT_EQ(thrown<ConfigError>([&] { (void)project_on_fsdp2(cpu.plan, cpu.segments); }),
            "stock FSDP2 is forecast for CUDA devices only\n  at: plan#/device\n  try: plan for a GPU");
  TinyCase other = tiny_case({.device = DeviceKind::Cuda}, {});
  other.plan.workload.optimizer.form = "8bit";
  EXPECT_EQ(thrown<ConfigError>([&] { (void)project_on_fsdp2(other.plan, other.segments); }),
            "stock FSDP2 is not forecast with the optimizer adamw in its 8bit form\n  at: plan#/workload/optimizer\n  try: adamw, "
            "fused, foreach or loop");
}

}  // namespace
}  // namespace shardplan
