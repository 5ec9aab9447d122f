// report.json says what was predicted and measured, and where they first part.
#include "executor/report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace shardplan {
namespace {

Timeline timeline(TimelineSource source, std::int64_t peak, std::int64_t after) {
  Timeline t{.source = source, .phase = Phase::Step1, .rank = 1};
  t.tasks = {{.task = TaskId(0), .peak_requested_bytes = peak, .after_requested_bytes = after, .label = "forward of embed"}};
  t.peak_requested_bytes = peak;
  t.peak_task = TaskId(0);
  t.at_peak[MemoryCategory::Activation] = peak;
  t.duration = std::chrono::milliseconds(1500);
  return t;
}

Report report_of(std::int64_t measured_peak) {
  return {.plan_hash = "abc",
          .ranks = 2,
          .phases = {{timeline(TimelineSource::Simulated, 640, 128), timeline(TimelineSource::Measured, measured_peak, 128), 77}}};
}

TEST(Report, EqualTimelinesAreEqualWhateverTheirTimes) {
  const Report report = report_of(640);
  EXPECT_TRUE(report.equal());
  const nlohmann::ordered_json document = json_from_report(report);
  EXPECT_EQ(document["kind"], "shardplan.report");
  EXPECT_EQ(document["schema_version"], 1);
  EXPECT_EQ(document["plan_hash"], "abc");
  EXPECT_EQ(document["device"], "cpu");
  EXPECT_EQ(document["ranks"], 2);
  EXPECT_EQ(document["equal"], true);
  const nlohmann::ordered_json& phase = document["phases"][0];
  EXPECT_EQ(phase["phase"], "step1");
  EXPECT_EQ(phase["rank"], 1);
  EXPECT_EQ(phase["predicted"]["peak_requested_bytes"], 640);
  EXPECT_EQ(phase["measured"]["by_category_bytes"]["Activation"], 640);
  EXPECT_EQ(phase["measured"]["seconds"], 1.5);
  EXPECT_EQ(phase["workspace_bytes"], 77);
  EXPECT_TRUE(phase["first_difference"].is_null());
}

TEST(Report, NamesTheFirstTaskThatDiffersByASingleByte) {
  const Report report = report_of(641);
  EXPECT_FALSE(report.equal());
  const nlohmann::ordered_json difference = json_from_report(report)["phases"][0]["first_difference"];
  EXPECT_EQ(difference["task"], "forward of embed");
  EXPECT_EQ(difference["what"], "peak");
  EXPECT_EQ(difference["predicted_bytes"], 640);
  EXPECT_EQ(difference["measured_bytes"], 641);
  EXPECT_NE(text_from_report(report).find("differs first at 'forward of embed' (peak): 640 predicted, 641 measured"),
            std::string::npos);
}

}  // namespace
}  // namespace shardplan
