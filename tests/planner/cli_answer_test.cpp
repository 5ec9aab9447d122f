// Laws of an answer: lines add up, figures agree with each other, text stays in its columns.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>

#include "planner/answers/amounts.h"
#include "planner/answers/json_answer.h"
#include "planner/answers/make_answer.h"
#include "planner/answers/text_answer.h"
#include "planner/command/request_from_flags.h"
#include "planner/lowering/check_plan.h"

namespace shardplan {
namespace {

const std::filesystem::path kConfigs = std::filesystem::path(SHARDPLAN_SOURCE_DIR) / "configs";

PlanRequest request_of(const std::vector<std::string>& arguments) {
  return request_from_flags(parse_command_line(arguments), kConfigs);
}

// Parts 0.333.. x 3 of 1.00 GiB: printed hundredths must sum to 100.
TEST(Amounts, PrintedPartsAddUpToThePrintedSum) {
  const AmountUnit gib = amount_unit(std::int64_t{1} << 30);
  for (std::int64_t seed = 1; seed < 200; ++seed) {
    std::vector<std::int64_t> parts;
    for (std::int64_t i = 0; i < seed % 9 + 1; ++i) parts.push_back((seed * 7919 + i * 104729) % 97 * 54321987 + i);
    const std::vector<std::int64_t> hundredths = hundredths_that_add_up(parts, gib);
    const std::int64_t sum = std::accumulate(hundredths.begin(), hundredths.end(), std::int64_t{0});
    const std::int64_t total = std::accumulate(parts.begin(), parts.end(), std::int64_t{0});
    EXPECT_EQ(std::to_string(sum / 100) + "." + std::to_string(sum % 100 / 10) + std::to_string(sum % 10), amount_text(total, gib));
    // No part moves by a whole hundredth.
    for (std::size_t i = 0; i < parts.size(); ++i) EXPECT_LT(std::abs(hundredths[i] * gib.bytes - parts[i] * 100), gib.bytes);
  }
}

struct Asked {
  const char* name;
  std::vector<std::string> arguments;
};

class AnswerLaws : public testing::TestWithParam<Asked> {};

TEST_P(AnswerLaws, Hold) {
  const PlanRequest request = request_of(GetParam().arguments);
  const Answer answer = make_answer(request, {.hardware_configs = kConfigs / "hardware"});
  const nlohmann::ordered_json j = json_from_answer(answer);
  EXPECT_EQ(j["feasible"].get<bool>(), answer.best.has_value());
  EXPECT_EQ(j["plan"].is_null(), !answer.best.has_value());
  EXPECT_EQ(j["infeasible"].is_null(), answer.best.has_value());
  EXPECT_TRUE(j["search"]["seconds"].is_null());

  std::vector<std::pair<PlannedChoice, PlanRequest>> shown;
  const auto judge_forecast = [&](const nlohmann::ordered_json& f) {
    // Categories add up to what the process holds; the headline is the largest phase.
    std::int64_t sum = 0, largest = 0;
    for (const auto& [name, bytes] : f["by_category_bytes"].items()) sum += bytes.get<std::int64_t>();
    EXPECT_EQ(sum, f["device_bytes"].get<std::int64_t>());
    EXPECT_EQ(f["phases"].size(), 5u);
    for (const auto& phase : f["phases"]) largest = std::max(largest, phase["peak_allocated_bytes"].get<std::int64_t>());
    EXPECT_EQ(largest, f["peak_allocated_bytes"].get<std::int64_t>());
    EXPECT_LE(f["uncertainty"]["device_bytes"][0].get<std::int64_t>(), f["device_bytes"].get<std::int64_t>());
    EXPECT_GE(f["uncertainty"]["device_bytes"][1].get<std::int64_t>(), f["device_bytes"].get<std::int64_t>());
    EXPECT_TRUE(f["peak_reserved_bytes"].is_null());
  };
  const auto judge_plan = [&](const PlannedChoice& planned) {
    const std::vector<PlanProblem> problems = check_plan(planned.plan, lower(planned.plan));
    EXPECT_TRUE(problems.empty()) << problems.front().law << " at " << problems.front().where;
  };
  if (answer.best) {
    judge_forecast(j["forecast"]);
    judge_plan(*answer.best);
    EXPECT_LE(binding_bytes(answer.best->forecast, request.hardware), request.capacity_bytes());
    EXPECT_GE(j["alternatives"].size(), 3u);
    for (const auto& alternative : j["alternatives"]) judge_forecast(alternative["forecast"]);
    for (const Alternative& alternative : answer.alternatives) judge_plan(alternative.planned);
    // One entry per kind of decision; no other word of one knob gains more than the gap.
    EXPECT_GE(j["explanation"].size(), 8u);
    const double chosen = answer.best->forecast.tokens_per_second_per_gpu;
    for (const Explanation& e : answer.explanation) {
      for (const OtherWord& other : e.instead_of) {
        if (other.over_bytes <= 0 && request.objective == Objective::Throughput) {
          EXPECT_LE(other.tokens_per_second_per_gpu, chosen * (1 + answer.search.gap_fraction) * (1 + 1e-12))
              << e.decision << " " << other.value;
        }
      }
    }
  } else {
    EXPECT_GT(answer.infeasible->short_by_bytes, 0);
    judge_forecast(j["infeasible"]["closest"]["forecast"]);
    EXPECT_EQ(binding_bytes(answer.infeasible->closest.forecast, request.hardware),
              request.capacity_bytes() + answer.infeasible->short_by_bytes);
    EXPECT_FALSE(answer.infeasible->remedies.empty());
    for (const Remedy& remedy : answer.infeasible->remedies) {
      judge_plan(remedy.planned);
      EXPECT_LE(remedy.planned.forecast.estimate.device.low_bytes, remedy.planned.forecast.capacity_bytes) << remedy.change;
    }
  }
  // Written twice, the same; read back, an equal plan.
  EXPECT_EQ(json_from_answer(make_answer(request, {.hardware_configs = kConfigs / "hardware"})).dump(), j.dump());
  if (answer.best) {
    EXPECT_EQ(plan_from_json(j["plan"], "answer"), answer.best->plan);
  }

  for (const bool explain : {false, true}) {
    std::istringstream lines(text_from_answer(answer, {.explain = explain}));
    for (std::string line; std::getline(lines, line);) {
      EXPECT_LE(line.size(), 100u) << line;
      EXPECT_TRUE(std::all_of(line.begin(), line.end(), [](char c) { return c >= ' ' && c <= '~'; })) << line;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Cases, AnswerLaws,
    testing::Values(Asked{"one_gpu", {"llama3.2-1b", "--gpus", "1"}}, Asked{"four_gpus", {"llama3-8b", "--gpus", "4"}},
                    Asked{"two_nodes", {"qwen2.5-7b", "--gpus", "16", "--global-batch", "128"}},
                    Asked{"least_memory", {"llama3-8b", "--gpus", "8", "--objective", "memory"}},
                    Asked{"head_only", {"mistral-7b-v0.3", "--gpus", "2", "--train", "head"}},
                    Asked{"too_small", {"llama3-8b", "--gpus", "4", "--gpu", "rtx4090-24g"}},
                    Asked{"limit", {"qwen3-8b", "--gpus", "8", "--memory-limit", "20 GiB", "--recompute", "none"}}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace shardplan
