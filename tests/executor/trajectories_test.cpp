// Whole runs follow stock PyTorch FSDP2's: losses and gradient norms of 16 steps, sums over the saved tensors, within the
// tolerances that equivalent runs of PyTorch keep among themselves (data/trajectories.json says how they were made). The same run
// twice gives the same bits.
#include <c10/util/Logging.h>  // before core/error.h, whose CHECK replaces the one here

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <fstream>
#include <sstream>

#include "executor/safetensors.h"
#include "tests/executor/ranks.h"
#include "tests/executor/recorded_runs.h"

namespace shardplan {
namespace {

using Json = nlohmann::ordered_json;

std::vector<Json> steps_of(const std::filesystem::path& folder) {
  std::ifstream lines(folder / "run/metrics.jsonl");
  std::vector<Json> steps;
  for (std::string line; std::getline(lines, line);) steps.push_back(Json::parse(line));
  return steps;
}

void expect_near(double made, double expected, double tolerance, const std::string& what) {
  EXPECT_LE(std::abs(made - expected) / std::max(0.01, std::abs(expected)), tolerance)
      << what << ": " << made << ", expected " << expected;
}

struct Sums {
  double sum = 0, abs_sum = 0;
};

Sums sums_of(const StoredModel& model, const std::string& name) {
  const StoredTensor* tensor = model.find(name);
  if (tensor == nullptr) throw std::runtime_error("final/ holds " + name);
  const std::span<const std::byte> bytes = model.bytes(*tensor);
  Sums sums;
  for (std::size_t i = 0; i + sizeof(float) <= bytes.size(); i += sizeof(float)) {
    float value = 0;
    std::memcpy(&value, bytes.data() + i, sizeof value);
    sums.sum += value;
    sums.abs_sum += std::abs(value);
  }
  return sums;
}

class Trajectories : public testing::TestWithParam<std::string> {};

TEST_P(Trajectories, FollowStockFsdp2) {
  const Json& c = case_named(GetParam());
  const TestFolder folder;
  ASSERT_EQ(train(plan_of_case(c), data_of_case(c), folder.path()), 0);
  const std::vector<Json> steps = steps_of(folder.path());
  const Json& tolerance = c["tolerance"];
  ASSERT_EQ(steps.size(), c["loss"].size());
  for (std::size_t t = 0; t < steps.size(); ++t) {
    const std::string step = fmt::format("step {}", t + 1);
    expect_near(steps[t]["loss"], c["loss"][t], tolerance[t == 0 ? "step1_loss" : "loss"], step + " loss");
    expect_near(steps[t]["grad_norm"], c["grad_norm"][t], tolerance[t == 0 ? "step1_grad_norm" : "grad_norm"],
                step + " gradient norm");
  }
  const StoredModel final_model(folder / "run/final");
  for (const auto& [name, expected] : c["checksums"].items()) {
    const Sums made = sums_of(final_model, name);
    const double scale = std::max(1.0, expected["abs_sum"].get<double>()), allowed = expected["tolerance"];
    EXPECT_LE(std::abs(made.sum - expected["sum"].get<double>()) / scale, allowed) << name;
    EXPECT_LE(std::abs(made.abs_sum - expected["abs_sum"].get<double>()) / scale, allowed) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, Trajectories,
                         testing::Values("llama_fp32", "llama_fp32_w4", "llama_tied_odd_vocab", "llama_bf16", "llama_recompute",
                                         "llama_hsdp", "llama_head_only", "qwen2_accum", "qwen3_headdim", "mistral_window"),
                         [](const auto& info) { return info.param; });

TEST(SameRunTwice, GivesTheSameBits) {
  for (const char* name : {"llama_bf16", "llama_hsdp"}) {
    const Json& c = case_named(name);
    const TestFolder first, second;
    ASSERT_EQ(train(plan_of_case(c), data_of_case(c), first.path()), 0);
    ASSERT_EQ(train(plan_of_case(c), data_of_case(c), second.path()), 0);
    const std::vector<Json> a = steps_of(first.path()), b = steps_of(second.path());
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t t = 0; t < a.size(); ++t) {
      EXPECT_EQ(a[t]["loss"], b[t]["loss"]);
      EXPECT_EQ(a[t]["grad_norm"], b[t]["grad_norm"]);
    }
    EXPECT_EQ(text_of_file(first / "run/final/model.safetensors"), text_of_file(second / "run/final/model.safetensors"));
  }
}

}  // namespace
}  // namespace shardplan
