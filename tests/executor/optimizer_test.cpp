// The optimizer's rules against their closed forms, and AdamW on stretches against the textbook formula.
#include "executor/optimizer.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

namespace shardplan {
namespace {

TEST(LearningRate, RisesInEqualStepsFromZeroAndThenFollowsTheSchedule) {
  // W = 4 warm-up steps of T = 12: lr(t) = lr t/W below W; afterwards p = (t-W)/(T-W).
  OptimizerSpec spec{.lr = 0.8, .warmup_steps = 4};
  for (const LrSchedule schedule : {LrSchedule::Constant, LrSchedule::Linear, LrSchedule::Cosine}) {
    spec.schedule = schedule;
    EXPECT_EQ(learning_rate(spec, 0, 12), 0.0);
    EXPECT_DOUBLE_EQ(learning_rate(spec, 1, 12), 0.8 * 1 / 4);
    EXPECT_DOUBLE_EQ(learning_rate(spec, 3, 12), 0.8 * 3 / 4);
    EXPECT_DOUBLE_EQ(learning_rate(spec, 4, 12), 0.8);
  }
  for (std::int64_t t = 4; t < 12; ++t) {
    const double p = static_cast<double>(t - 4) / (12 - 4);
    spec.schedule = LrSchedule::Constant;
    EXPECT_DOUBLE_EQ(learning_rate(spec, t, 12), 0.8);
    spec.schedule = LrSchedule::Linear;
    EXPECT_DOUBLE_EQ(learning_rate(spec, t, 12), 0.8 * (1 - p));
    spec.schedule = LrSchedule::Cosine;
    EXPECT_DOUBLE_EQ(learning_rate(spec, t, 12), 0.8 * (1 + std::cos(std::numbers::pi * p)) / 2);
  }
}

TEST(LearningRate, WithoutWarmupStartsAtItsFullHeightAndNeverTurnsNegative) {
  const OptimizerSpec spec{.lr = 0.5, .schedule = LrSchedule::Linear};
  EXPECT_DOUBLE_EQ(learning_rate(spec, 0, 10), 0.5);
  EXPECT_EQ(learning_rate(spec, 25, 10), 0.0);
}

TEST(Clipping, NeverEnlargesAndBringsALongGradientToTheLimit) {
  EXPECT_EQ(clip_factor(2.0, 1.0), 1.0);
  EXPECT_DOUBLE_EQ(clip_factor(2.0, 8.0), 2.0 / (8.0 + 1e-6));
}

// A group of three parameters: a 2x3 matrix, a vector of 3, a 2x2 matrix; 13 elements, padded to 14 for two ranks of 7.
//   element  0     6  9    13
//            MMMMMMVVVMMMM-
//   rank     0000000111 1111
struct ThreeParameters {
  ThreeParameters() {
    table.parameters = {{.name = "a", .shape = {2, 3}}, {.name = "b", .shape = {3}}, {.name = "c", .shape = {2, 2}}};
    group = {.trainable = true,
             .slots = {{ParameterId(0), 0, 6}, {ParameterId(1), 6, 3}, {ParameterId(2), 9, 4}},
             .numel = 13,
             .padded_numel = 14,
             .stretch_numel = 7};
  }
  ParameterTable table;
  FlatGroup group;
};

TEST(DecayRuns, CutAStretchWhereDecayChangesAndCoverItWithItsPadding) {
  const ThreeParameters p;
  const OptimizerSpec matrices{.decay = WeightDecayScope::Matrices};
  EXPECT_EQ(decay_runs(p.group, p.table, matrices, 0), (std::vector<DecayRun>{{0, 6, true}, {6, 1, false}}));
  EXPECT_EQ(decay_runs(p.group, p.table, matrices, 1), (std::vector<DecayRun>{{0, 2, false}, {2, 5, true}}));
}

TEST(DecayRuns, AreOneWhereEverythingDecays) {
  const ThreeParameters p;
  for (const std::int32_t rank : {0, 1}) EXPECT_EQ(decay_runs(p.group, p.table, {}, rank), (std::vector<DecayRun>{{0, 7, true}}));
}

TEST(DecayRuns, CoverAStretchOfPaddingAlone) {
  ThreeParameters p;
  p.group.padded_numel = 28;  // four ranks of 7: the last two hold padding
  EXPECT_EQ(decay_runs(p.group, p.table, {}, 3), (std::vector<DecayRun>{{0, 7, true}}));
}

TEST(AdamW, DecaysWhereTheRunsSayAndFollowsTheFormula) {
  // m = (1-b1) g, v = (1-b2) g^2 after the first step, so the corrected moments are g and g^2:
  // p' = p (1 - lr wd) - lr g / (|g| + eps), without decay p' = p - lr g / (|g| + eps).
  const c10::InferenceMode no_autograd;
  const OptimizerSpec spec{.beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.1};
  const double lr = 0.25;
  std::vector<float> p{1, -2, 3, 4}, g{0.5F, 0.25F, -1, 2}, m(4, 0), v(4, 0);
  const std::vector<float> before = p;
  float step = 1;
  const auto flat = [](std::vector<float>& values) { return FlatBuffer{at::from_blob(values.data(), {4}, at::kFloat), true}; };
  GroupState group{.sharded_param = flat(p), .sharded_grad = flat(g), .exp_avg = flat(m), .exp_avg_sq = flat(v)};
  const std::vector<DecayRun> runs{{0, 2, true}, {2, 2, false}};
  adamw_step(group, at::from_blob(&step, {1}, at::kFloat), runs, spec, lr);
  for (std::size_t i = 0; i < p.size(); ++i) {
    const double kept = i < 2 ? before[i] * (1 - lr * 0.1) : before[i];
    EXPECT_NEAR(p[i], kept - lr * g[i] / (std::abs(g[i]) + 1e-8), 1e-6) << i;
    EXPECT_FLOAT_EQ(m[i], 0.1F * g[i]);
    EXPECT_NEAR(v[i], 0.01 * g[i] * g[i], 1e-8);
  }
}

// Where dtypes differ, the step is the fp32 step on what is stored, rounded once where it is stored narrow.
TEST(AdamW, StepsInFp32WhereMomentsAreStoredNarrow) {
  const c10::InferenceMode no_autograd;
  const OptimizerSpec spec{.beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8, .weight_decay = 0.1};
  const std::vector<DecayRun> runs{{0, 2, true}, {2, 2, false}};
  float step = 1;
  const at::Tensor counter = at::from_blob(&step, {1}, at::kFloat);
  std::vector<float> values{1, -2, 3, 4}, slopes{0.5F, 0.25F, -1, 2};
  for (const auto& [weights, moments] : {std::pair{at::kFloat, at::kBFloat16}, std::pair{at::kBFloat16, at::kFloat}}) {
    const auto group_of = [&](at::ScalarType w, at::ScalarType m) {
      const auto flat = [](const at::Tensor& t) { return FlatBuffer{t, true}; };
      const auto copy = [&](std::vector<float>& from) { return at::from_blob(from.data(), {4}, at::kFloat).to(w, false, true); };
      return GroupState{.sharded_param = flat(copy(values)),
                        .sharded_grad = flat(copy(slopes)),
                        .exp_avg = flat(at::zeros({4}, m)),
                        .exp_avg_sq = flat(at::zeros({4}, m))};
    };
    GroupState mixed = group_of(weights, moments), wide = group_of(at::kFloat, at::kFloat);
    adamw_step(mixed, counter, runs, spec, 0.25);
    adamw_step(wide, counter, runs, spec, 0.25);
    EXPECT_TRUE(at::equal(mixed.sharded_param.flat, wide.sharded_param.flat.to(weights)));
    EXPECT_TRUE(at::equal(mixed.exp_avg.flat, wide.exp_avg.flat.to(moments)));
    EXPECT_TRUE(at::equal(mixed.exp_avg_sq.flat, wide.exp_avg_sq.flat.to(moments)));
  }
}

}  // namespace
}  // namespace shardplan
