// What execute saves is a model for transformers: it loads without complaint and has the loss that the executor measured.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/write_file.h"
#include "executor/random_init.h"
#include "executor/seeded_words.h"
#include "tests/executor/ranks.h"
#include "tests/executor/small_plans.h"

namespace shardplan {
namespace {

// Rows of random ids, three to twenty long.
std::string rows_of(std::int64_t count, std::int64_t vocab) {
  const SeededWords words(11, "rows");
  std::uint64_t at = 0;
  std::string text;
  for (std::int64_t r = 0; r < count; ++r) {
    const auto length = 3 + static_cast<std::int64_t>(words.word(at++) % 18);
    nlohmann::json ids = nlohmann::json::array();
    for (std::int64_t i = 0; i < length; ++i) ids.push_back(words.word(at++) % static_cast<std::uint64_t>(vocab));
    text += nlohmann::json{{"input_ids", ids}}.dump() + "\n";
  }
  return text;
}

class FinalInTransformers : public testing::TestWithParam<SmallModel> {};

TEST_P(FinalInTransformers, LoadsAndHasTheMeasuredLoss) {
  const TestFolder folder;
  const PlanChoice choice{.model = GetParam(), .shard = 2, .batch = 2, .seq_len = 16, .init = InitPath::Delayed};
  write_random_model(model_from_json(config_of(choice.model), "config.json", "small"), folder / "model", {.std_deviation = 0.08});
  write_file_whole(folder / "plan.json", json_from_plan(plan_of(choice)).dump());
  write_file_whole(folder / "rows.jsonl", rows_of(13, choice.model.vocab));  // no multiple of the four sequences of a step
  const std::string run = fmt::format(
      "OMP_NUM_THREADS=1 '{0}/bin/execute' '{1}/plan.json' --model '{1}/model' --data '{1}/rows.jsonl' --eval-data "
      "'{1}/rows.jsonl' "
      "--out '{1}/run' --steps 3 > '{1}/out' 2> '{1}/err'",
      SHARDPLAN_BINARY_DIR, folder.path().string());
  ASSERT_EQ(std::system(run.c_str()), 0) << text_of_file(folder / "err") << text_of_file(folder / "out");

  const std::string check = fmt::format(
      "'{0}' '{1}/tests/interop/final_in_transformers.py' '{2}/run/final' '{2}/rows.jsonl' {3} > '{2}/there' 2> '{2}/there.err'",
      SHARDPLAN_PYTHON, SHARDPLAN_SOURCE_DIR, folder.path().string(), choice.seq_len);
  const int status = std::system(check.c_str());
  if (WEXITSTATUS(status) == 77 || WEXITSTATUS(status) == 127) GTEST_SKIP() << "transformers is missing in " << SHARDPLAN_PYTHON;
  ASSERT_EQ(status, 0) << text_of_file(folder / "there.err");
  const nlohmann::json there = nlohmann::json::parse(text_of_file(folder / "there"));
  EXPECT_EQ(there["problems"].dump(), "{}");
  EXPECT_EQ(there["dtype"], "torch.float32");

  const std::string metrics = text_of_file(folder / "run/metrics.jsonl");
  const nlohmann::json here = nlohmann::json::parse(metrics.substr(metrics.rfind('\n', metrics.size() - 2) + 1));
  ASSERT_EQ(here["event"], "eval");
  EXPECT_EQ(here["targets"], there["targets"]) << "every row once";
  // fp32 against fp64 sums of some hundred terms.
  EXPECT_NEAR(here["loss"].get<double>(), there["loss"].get<double>(), 2e-6 * there["loss"].get<double>());
}

INSTANTIATE_TEST_SUITE_P(Families, FinalInTransformers,
                         testing::Values(SmallModel{}, SmallModel{.type = "qwen2", .tied = true},
                                         SmallModel{.type = "qwen3", .head_dim = 20}, SmallModel{.type = "mistral", .window = 8}),
                         [](const auto& info) { return info.param.type; });

}  // namespace
}  // namespace shardplan
