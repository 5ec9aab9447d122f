// Equality with PyTorch's own FSDP2 memory tracker (torch 2.11): every total and every category that is compared, in two steps.
//
// truth.json: recorded cases of llama, mistral, qwen2 and qwen3 models; how they were recorded is in docs/schedule_fsdp2.md.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "core/json_reader.h"
#include "planner/answers/validate.h"

namespace shardplan {
namespace {

namespace fs = std::filesystem;

const fs::path kTruth = fs::path(SHARDPLAN_SOURCE_DIR) / "tests/planner/fsdp2/truth.json";

TEST(Fsdp2Truth, EveryTotalAndCategoryEqualsPyTorchsTracker) {
  const std::vector<ValidationReport> reports = validate_documents({kTruth});
  ASSERT_EQ(reports.size(), 1U);
  EXPECT_TRUE(reports[0].missing.empty()) << reports[0].missing.dump();
  EXPECT_EQ(reports[0].predictions.size(), json_from_file(kTruth).at("cases").size());
  // A case has a creation, and in each step at least a forward, a backward, an optimizer, a zeroing, three phase peaks and the
  // peak.
  EXPECT_GE(reports[0].rows.size(), reports[0].predictions.size() * 17);
  for (const ValidationRow& row : reports[0].rows) {
    EXPECT_EQ(row.predicted, row.truth) << row.id << " " << row.figure;
    for (const std::string& field : row.differs) ADD_FAILURE() << row.id << " differs: " << field;
  }
}

TEST(Fsdp2Truth, AChangedTruthIsNoticed) {
  nlohmann::ordered_json document = json_from_file(kTruth);
  nlohmann::ordered_json one = document["cases"][0];
  nlohmann::ordered_json& snapshot = one["expected"]["steps"][1]["after_optimizer"];
  const auto total = snapshot["total_bytes"].get<std::int64_t>(),
             states = snapshot["by_category_bytes"]["OptState"].get<std::int64_t>();
  snapshot["total_bytes"] = total + 512;
  snapshot["by_category_bytes"]["OptState"] = states + 512;
  document["cases"] = nlohmann::ordered_json::array({one});
  const fs::path file = fs::temp_directory_path() / "fsdp2_truth_changed.json";
  std::ofstream(file) << document;
  std::vector<ValidationRow> wrong;
  const std::vector<ValidationReport> reports = validate_documents({file});
  for (const ValidationRow& row : reports[0].rows)
    if (row.relative_error != 0 || !row.differs.empty()) wrong.push_back(row);
  fs::remove(file);
  ASSERT_EQ(wrong.size(), 1U);
  EXPECT_EQ(wrong[0].figure, "step 2 after_optimizer");
  EXPECT_EQ(wrong[0].predicted, static_cast<double>(total));
  EXPECT_EQ(wrong[0].differs, (std::vector<std::string>{"step 2 after_optimizer OptState: " + std::to_string(states) + ", not " +
                                                        std::to_string(states + 512)}));
}

}  // namespace
}  // namespace shardplan
