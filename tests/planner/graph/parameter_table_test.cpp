#include "planner/graph/parameter_table.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "tests/core/thrown.h"
#include "tests/planner/graph/small_graphs.h"

namespace shardplan {
namespace {

using testing_graph::small_model;

std::int64_t trained(const ModelSpec& model, const std::vector<std::string>& train, const std::vector<std::string>& freeze = {}) {
  ParameterTable table = parameter_table(model);
  select_trainable(table, model, train, freeze);
  return table.trainable_numel();
}

// H = 32, I = 48, A = 4, K = 2, D = 8, V = 40.
constexpr std::int64_t H = 32, I = 48, A = 4, K = 2, D = 8, V = 40, kLayers = 2;
constexpr std::int64_t kLayer = 2 * A * D * H + 2 * K * D * H + 3 * H * I + 2 * H;

TEST(ParameterTable, CountsAreTheSumOfTheMatrices) {
  EXPECT_EQ(parameter_table(small_model("llama")).total_numel(), 2 * V * H + kLayers * kLayer + H);
  EXPECT_EQ(parameter_table(small_model("llama", {{"tie_word_embeddings", true}})).total_numel(), V * H + kLayers * kLayer + H);
  EXPECT_EQ(parameter_table(small_model("qwen2")).total_numel(), 2 * V * H + kLayers * (kLayer + (A + 2 * K) * D) + H);
  EXPECT_EQ(parameter_table(small_model("qwen3", {{"head_dim", D}})).total_numel(), 2 * V * H + kLayers * (kLayer + 2 * D) + H);
}

TEST(ParameterTable, SelectionWordsUnite) {
  const ModelSpec model = small_model("qwen2");
  const std::int64_t biases = kLayers * (A + 2 * K) * D, norms = kLayers * 2 * H + H;
  EXPECT_EQ(trained(model, {"all"}), parameter_table(model).total_numel());
  EXPECT_EQ(trained(model, {"head"}), V * H);
  EXPECT_EQ(trained(model, {"embed"}), V * H);
  EXPECT_EQ(trained(model, {"norms"}), norms);
  EXPECT_EQ(trained(model, {"biases"}), biases);
  EXPECT_EQ(trained(model, {"last:1"}), kLayer + (A + 2 * K) * D);
  EXPECT_EQ(trained(model, {"norms", "biases", "head"}), norms + biases + V * H);
  EXPECT_EQ(trained(model, {"regex:layers\\.0\\..*(q|v)_proj\\.weight"}), A * D * H + K * D * H);
}

TEST(ParameterTable, FreezeTakesAwayWhatWasSelected) {
  const ModelSpec model = small_model("llama");
  EXPECT_EQ(trained(model, {"all"}, {"embed_tokens", "lm_head"}), kLayers * kLayer + H);
  EXPECT_EQ(trained(model, {"last:1"}, {"mlp"}), kLayer - 3 * H * I);
}

TEST(ParameterTable, ATiedHeadIsTheEmbedding) {
  const ModelSpec model = small_model("llama", {{"tie_word_embeddings", true}});
  ParameterTable table = parameter_table(model);
  select_trainable(table, model, {"head"}, {});
  for (const Parameter& p : table.parameters) EXPECT_EQ(p.trainable, p.name == "model.embed_tokens.weight") << p.name;
}

TEST(ParameterTable, WordsThatSelectNothingAreRefused) {
  const ModelSpec model = small_model("llama");
  const auto error_of = [&](const std::vector<std::string>& train, const std::vector<std::string>& freeze = {}) {
    return thrown<UsageError>([&] { (void)trained(model, train, freeze); });
  };
  EXPECT_EQ(error_of({"norm"}),
            "\"norm\" selects nothing that trains\n  at: --train\n"
            "  try: one of all, head, embed, last:N, norms, biases, regex:RE; the nearest is \"norms\"");
  EXPECT_EQ(error_of({"last:3"}), "\"last:3\" names no number of layers\n  at: --train\n  try: last:1 to last:2");
  EXPECT_EQ(error_of({"last:"}), "\"last:\" names no number of layers\n  at: --train\n  try: last:1 to last:2");
  EXPECT_EQ(
      error_of({"biases"}),
      "nothing is left to train: no parameter of small is selected\n  at: --train, --freeze\n  try: select at least one parameter");
  EXPECT_EQ(
      error_of({"all"}, {"."}),
      "nothing is left to train: no parameter of small is selected\n  at: --train, --freeze\n  try: select at least one parameter");
  EXPECT_NE(error_of({"regex:("}).find("\"(\" is no regular expression: "), std::string::npos);
}

}  // namespace
}  // namespace shardplan
