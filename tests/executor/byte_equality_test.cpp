// Prediction and measurement agree to the byte: at the peak inside every task and at the level after it, by category at the phase's
// peak, in load, step 1, step 2, a further step, evaluation and save, on every rank, one thread a rank.
//
// Left out of the equality, as the contract says: packing scratch of 16-bit products, which depends on the processor.
#include <c10/util/Logging.h>  // before core/error.h, whose CHECK replaces the one here

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>

#include "executor/counting_allocator.h"
#include "executor/launch.h"
#include "executor/process_groups.h"
#include "executor/unit_tasks.h"
#include "simulator/simulate.h"
#include "tests/executor/small_plans.h"

namespace shardplan {
namespace {

struct Case {
  std::string name;
  PlanChoice choice;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

const StepProgram& program_of(const Lowered& lowered, Phase phase) {
  for (const LoweredProgram& p : lowered.phases)
    if (p.program.phase == phase) return p.program;
  throw std::logic_error("no such phase");
}

// 0 when equal; says on stderr what differs.
int compare(const StepProgram& program, const Timeline& measured) {
  const Timeline predicted = simulate(program, local_cpu_hardware(), {.synchronous = true});
  const std::string where = fmt::format("{} of rank {}", phase_name(program.phase), measured.rank);
  if (const auto d = first_difference(predicted, measured)) {
    fmt::print(stderr, "{}: '{}' {}: predicted {}, measured {}\n", where, d->task, d->what, d->predicted_bytes, d->measured_bytes);
    return 1;
  }
  if (predicted.peak_requested_bytes != measured.peak_requested_bytes) {
    fmt::print(stderr, "{}: peak predicted {}, measured {}\n", where, predicted.peak_requested_bytes,
               measured.peak_requested_bytes);
    return 1;
  }
  for (int c = 0; c < kNumMemoryCategories; ++c) {
    const auto category = static_cast<MemoryCategory>(c);
    if (predicted.at_peak[category] == measured.at_peak[category]) continue;
    fmt::print(stderr, "{}: at its peak {} predicted {}, measured {}\n", where, category_name(category),
               predicted.at_peak[category], measured.at_peak[category]);
    return 1;
  }
  return 0;
}

int run_and_compare(const PlanChoice& choice, const Plan& plan, const Lowered& lowered, const RankPlace& place) {
  at::set_num_threads(1);
  install_counting_allocator();
  RankWorld world(place, std::chrono::seconds(60));
  const StepProgram& step = program_of(lowered, Phase::Step1);
  const std::unique_ptr<Collectives> collectives = gloo_collectives(world, step.mesh);
  const MeshAxes axes = mesh_axes(step);
  const std::int32_t shard_index = axes.shard.is_set() ? collectives->index_on(axes.shard) : 0;
  RankState state = make_rank_state(plan, lowered, at::kCPU, shard_index);
  SeededFiles files(lowered, shard_index);
  SynchronousStreams streams;
  CountingMeter memory;
  RankMachine machine{.collectives = collectives.get(), .streams = &streams, .memory = &memory, .files = &files};
  int wrong = 0;
  double first_loss = 0, last_loss = 0;
  for (const Phase phase : {Phase::Load, Phase::Step1, Phase::Step2, Phase::Step2, Phase::Eval, Phase::Save}) {
    ProgramRunner runner(plan, lowered, phase, state);
    const SeededStep batch(choice, place.rank, /*step=*/0);
    const StepResult result = runner.run(machine, batch.input);
    wrong += compare(program_of(lowered, phase), result.measured);
    if (phase == Phase::Step1) first_loss = result.loss_sum;
    if (phase == Phase::Step2) last_loss = result.loss_sum;
  }
  if (!(last_loss < first_loss) || !std::isfinite(last_loss)) {
    fmt::print(stderr, "the loss falls on a repeated batch: {} then {}\n", first_loss, last_loss);
    wrong += 1;
  }
  double wrong_anywhere = wrong;
  world.all_sum({&wrong_anywhere, 1});
  return wrong_anywhere == 0 ? 0 : 1;
}

class ByteEquality : public testing::TestWithParam<Case> {};

TEST_P(ByteEquality, EveryTaskOfEveryPhaseAsPredicted) {
  const PlanChoice& choice = GetParam().choice;
  const Plan plan = plan_of(choice);
  const Lowered lowered = lower(plan);
  EXPECT_EQ(
      run_local_ranks(plan.mesh.world(), [&](const RankPlace& place) { return run_and_compare(choice, plan, lowered, place); }), 0);
}

constexpr Precision kBf16Fp32Reduce{.stored = DType::F32, .compute = DType::BF16, .reduce = DType::F32, .state = DType::F32};
constexpr Precision kBf16Bf16Reduce{.stored = DType::F32, .compute = DType::BF16, .reduce = DType::BF16, .state = DType::F32};

std::vector<Case> all_cases() {
  const SmallModel llama{.type = "llama", .layers = 4};
  SmallModel tied = llama, equal_heads = llama;
  tied.tied = true;
  equal_heads.kv_heads = 4;
  const SmallModel qwen2{.type = "qwen2", .layers = 3}, qwen3{.type = "qwen3", .layers = 3, .head_dim = 20};
  const SmallModel window{.type = "mistral", .layers = 3, .window = 16};
  return {
      // One rank: parameters alias the stored shard in fp32, the full gradient is the gradient.
      {"one_rank_fp32", {.model = llama}},
      {"one_rank_fp32_accum3", {.model = llama, .grad_accum = 3}},
      {"one_rank_bf16", {.model = llama, .precision = kBf16Fp32Reduce}},
      {"one_rank_bf16_reduce_bf16_accum3", {.model = tied, .precision = kBf16Bf16Reduce, .grad_accum = 3}},
      {"one_rank_fp32_reduce_bf16_accum2",
       {.model = tied,
        .precision = {.stored = DType::F32, .compute = DType::F32, .reduce = DType::BF16, .state = DType::F32},
        .grad_accum = 2,
        .accum_sync = AccumSync::Last}},
      {"one_rank_bf16_weights_and_states",
       {.model = tied, .precision = {.stored = DType::BF16, .compute = DType::BF16, .reduce = DType::F32, .state = DType::BF16}}},
      {"one_rank_bf16_weights_fp32_states",
       {.model = llama,
        .precision = {.stored = DType::BF16, .compute = DType::BF16, .reduce = DType::BF16, .state = DType::F32},
        .clip_norm = 0.5}},
      {"one_rank_recompute_all", {.model = tied, .recompute = Recompute::All}},
      {"one_rank_whole_clip", {.model = qwen2, .wrap = Wrap::Whole, .clip_norm = 0.5}},
      {"one_rank_window_halves", {.model = window, .wrap = Wrap::Halves, .recompute = Recompute::Halves, .seq_len = 41}},
      {"one_rank_head_only", {.model = llama, .train = {"head"}}},
      // Two ranks.
      {"two_ranks_fp32", {.model = llama, .shard = 2}},
      {"two_ranks_fp32_no_reshard", {.model = llama, .shard = 2, .reshard = false}},
      {"two_ranks_two_blocks_recompute_all", {.model = llama, .shard = 2, .wrap = Wrap::TwoBlocks, .recompute = Recompute::All}},
      {"two_ranks_whole", {.model = equal_heads, .shard = 2, .wrap = Wrap::Whole}},
      {"two_ranks_tied_joint", {.model = tied, .shard = 2, .joint_root = true, .recompute = Recompute::FirstBlock}},
      {"two_ranks_bf16", {.model = llama, .precision = kBf16Fp32Reduce, .shard = 2}},
      {"two_ranks_bf16_reduce_bf16", {.model = llama, .precision = kBf16Bf16Reduce, .shard = 2, .recompute = Recompute::All}},
      {"two_ranks_bf16_accum3_every", {.model = qwen3, .precision = kBf16Bf16Reduce, .shard = 2, .grad_accum = 3}},
      {"two_ranks_bf16_accum3_last",
       {.model = qwen3, .precision = kBf16Fp32Reduce, .shard = 2, .grad_accum = 3, .accum_sync = AccumSync::Last}},
      {"two_ranks_qwen2_accum3_last",
       {.model = qwen2, .shard = 2, .grad_accum = 3, .accum_sync = AccumSync::Last, .clip_norm = 1.0}},
      {"two_ranks_qwen2_prefetch", {.model = qwen2, .shard = 2, .reshard = false, .prefetch = 2}},
      {"two_ranks_qwen3_halves_prefetch",
       {.model = qwen3, .shard = 2, .wrap = Wrap::Halves, .recompute = Recompute::Halves, .prefetch = 1}},
      {"two_ranks_keep_attention", {.model = llama, .shard = 2, .recompute = Recompute::KeepAttention}},
      {"two_ranks_norms_only", {.model = llama, .train = {"norms"}, .shard = 2, .recompute = Recompute::All}},
      {"two_ranks_last_layer", {.model = llama, .train = {"last:1"}, .precision = kBf16Fp32Reduce, .shard = 2}},
      {"two_ranks_fp32_weights_bf16_states",
       {.model = qwen2,
        .precision = {.stored = DType::F32, .compute = DType::BF16, .reduce = DType::F32, .state = DType::BF16},
        .shard = 2}},
      {"two_ranks_longer", {.model = llama, .shard = 2, .batch = 1, .seq_len = 199}},
      {"two_replicas", {.model = llama, .replicate = 2}},
      {"two_replicas_bf16_accum3", {.model = qwen2, .precision = kBf16Bf16Reduce, .replicate = 2, .grad_accum = 3}},
      // Four ranks.
      {"four_ranks_fp32", {.model = llama, .shard = 4, .joint_root = true}},
      {"four_ranks_bf16_window", {.model = window, .precision = kBf16Fp32Reduce, .shard = 4, .recompute = Recompute::All}},
      {"hybrid_fp32", {.model = llama, .shard = 2, .replicate = 2}},
      {"hybrid_bf16_accum3",
       {.model = tied, .precision = kBf16Bf16Reduce, .shard = 2, .replicate = 2, .wrap = Wrap::TwoBlocks, .grad_accum = 3}},
      {"hybrid_accum3_last", {.model = qwen3, .shard = 2, .replicate = 2, .grad_accum = 3, .accum_sync = AccumSync::Last}},
      {"delayed_pieces", {.model = llama, .shard = 2, .init = InitPath::Delayed}},
  };
}

INSTANTIATE_TEST_SUITE_P(Plans, ByteEquality, testing::ValuesIn(all_cases()), [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace shardplan
