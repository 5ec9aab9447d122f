// Equality with transformers: parameter tables, and what autograd keeps, storage by storage.
#include "planner/answers/validate.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "core/error.h"
#include "core/json_reader.h"
#include "tests/core/thrown.h"

namespace shardplan {
namespace {

namespace fs = std::filesystem;

const fs::path kData = fs::path(SHARDPLAN_SOURCE_DIR) / "tests/planner/data";

void expect_all_equal(const fs::path& file, std::size_t num_cases) {
  const std::vector<ValidationReport> reports = validate_documents({file});
  ASSERT_EQ(reports.size(), 1U);
  EXPECT_TRUE(reports[0].missing.empty()) << reports[0].missing.dump();
  EXPECT_EQ(reports[0].rows.size(), num_cases);
  for (const ValidationRow& row : reports[0].rows) {
    EXPECT_EQ(row.predicted, row.truth) << row.id;
    for (const std::string& field : row.differs) ADD_FAILURE() << row.id << " differs: " << field;
  }
}

TEST(Validate, ParameterTablesOfAllFamiliesEqualTransformers) { expect_all_equal(kData / "parameters.json", 78); }

TEST(Validate, SavedActivationsEqualAutogradsStorageByStorage) { expect_all_equal(kData / "saved_activations.json", 84); }

// A truth that is changed by one byte or one row is noticed.
TEST(Validate, AChangedTruthDiffers) {
  nlohmann::ordered_json document = json_from_file(kData / "saved_activations.json");
  nlohmann::ordered_json first = document["cases"][0];
  first["expected"]["saved"][0]["bytes"] = first["expected"]["saved"][0]["bytes"].get<std::int64_t>() + 1;
  document["cases"] = nlohmann::ordered_json::array({first});
  const fs::path file = fs::temp_directory_path() / "validate_test_changed.json";
  std::ofstream(file) << document;
  const std::vector<ValidationReport> reports = validate_documents({file});
  ASSERT_EQ(reports[0].rows.size(), 1U);
  EXPECT_EQ(reports[0].rows[0].differs,
            (std::vector<std::string>{"saved, only predicted: activation 14680064", "saved, only true: activation 14680065"}));
  fs::remove(file);
}

ValidationReport report_with_errors(const std::vector<double>& errors) {
  ValidationReport report;
  report.source_kind = "parameters";
  for (const double error : errors) {
    ValidationRow row;
    row.id = "c";
    row.relative_error = error;
    report.rows.push_back(row);
  }
  return report;
}

// Absolute errors sorted: 0, 1, 2, 3, 10 percent. Median 2; nearest rank of 0.9 * 5 = 4.5 is the fifth: 10. Signed median: 1.
TEST(Validate, StatisticsAreOfAbsoluteErrorsAndOneOfSignedOnes) {
  const ErrorStatistics s = statistics_of(report_with_errors({0.01, -0.10, 0.03, 0.0, 0.02}));
  EXPECT_EQ(s.count, 5);
  EXPECT_DOUBLE_EQ(s.median_fraction, 0.02);
  EXPECT_DOUBLE_EQ(s.p90_fraction, 0.10);
  EXPECT_DOUBLE_EQ(s.worst_fraction, 0.10);
  EXPECT_DOUBLE_EQ(s.signed_median_fraction, 0.01);
}

TEST(Validate, BarsAreAboveOrNot) {
  const ErrorStatistics s = statistics_of(report_with_errors({0.01, 0.02, 0.03}));
  EXPECT_TRUE(is_above(error_bar_from_text("median=0.019"), s));
  EXPECT_FALSE(is_above(error_bar_from_text("median=0.02"), s));
  EXPECT_TRUE(is_above(error_bar_from_text("worst=0"), s));
  EXPECT_FALSE(is_above(error_bar_from_text("p90=0.03"), s));
  for (const std::string bad : {"mean=0.1", "median", "median=", "median=x", "worst=-1", "p90=0.1x"}) {
    EXPECT_EQ(
        thrown<UsageError>([&] { (void)error_bar_from_text(bad); }),
        "\"" + bad + "\" is no bar\n  at: --fail-above\n  try: median=F, p90=F or worst=F with a fraction F, for example p90=0.05");
  }
}

TEST(Validate, OtherFamiliesAndKindsAreMissingOrRefused) {
  const fs::path file = fs::temp_directory_path() / "validate_test_other.json";
  std::ofstream(file)
      << R"({"kind": "saved_activations", "cases": [{"id": "x", "setup": {"part": "block", "model": {"name": "g", "hf_config": {"model_type": "rwkv"}}}, "expected": {}}]})";
  const std::vector<ValidationReport> reports = validate_documents({file});
  EXPECT_TRUE(reports[0].rows.empty());
  EXPECT_EQ(reports[0].missing.dump(), R"({"x":"model_type \"rwkv\" is not supported"})");
  EXPECT_EQ(
      predictions_document(reports[0]).dump(),
      R"({"schema_version":1,"kind":"shardplan.predictions","source_kind":"saved_activations","predictions":{},"missing":{"x":"model_type \"rwkv\" is not supported"}})");
  std::ofstream(file) << R"({"kind": "weather", "cases": []})";
  EXPECT_EQ(thrown<ConfigError>([&] { (void)validate_documents({file}); }),
            "documents of kind \"weather\" are not predicted\n  at: " + file.string() +
                "#/kind\n  try: one of parameters, saved_activations, fsdp2_memory");
  fs::remove(file);
}

}  // namespace
}  // namespace shardplan
