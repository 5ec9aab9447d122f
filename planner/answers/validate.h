// Predicts every case of truth documents and compares.
//
// Kinds predicted: parameters (counts and tables of a model), saved_activations (what autograd keeps for a part of a stock
// transformers model on CUDA) and fsdp2_memory (what stock FSDP2 holds on one rank in two steps). Cases that are not modelled are
// listed with the reason, never guessed. Paths inside a document are relative to it. Errors: ConfigError for a malformed document,
// or one of a kind that is not predicted.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace shardplan {

// One figure of one case.
struct ValidationRow {
  std::string id;
  std::string figure;  // "total_parameters", "activation_bytes"
  double predicted = 0;
  double truth = 0;
  double relative_error = 0;         // (predicted - truth) / truth
  std::vector<std::string> differs;  // fields of the case that are not equal to the truth, beyond this figure
};

struct ErrorStatistics {
  std::int64_t count = 0;
  double median_fraction = 0;  // of the absolute relative errors
  double p90_fraction = 0;     // nearest rank
  double worst_fraction = 0;
  double signed_median_fraction = 0;  // bias
};

struct ValidationReport {
  std::string source_kind;
  std::vector<ValidationRow> rows;                                        // in document order
  nlohmann::ordered_json predictions = nlohmann::ordered_json::object();  // case id -> prediction
  nlohmann::ordered_json missing = nlohmann::ordered_json::object();      // case id -> reason
};

// One report per source kind, in order of first appearance.
[[nodiscard]] std::vector<ValidationReport> validate_documents(const std::vector<std::filesystem::path>& files);

[[nodiscard]] ErrorStatistics statistics_of(const ValidationReport& report);

// Rows, fields that differ, missing cases, statistics; ASCII.
[[nodiscard]] std::string text_from_validation(const ValidationReport& report);

// The document of --predictions.
[[nodiscard]] nlohmann::ordered_json predictions_document(const ValidationReport& report);

// A bar of --fail-above: "median=0.05", "p90=...", "worst=...". UsageError for anything else.
struct ErrorBar {
  std::string statistic;
  double fraction = 0;
};
[[nodiscard]] ErrorBar error_bar_from_text(std::string_view text);
// True when the statistic is above the bar (exit code 6).
[[nodiscard]] bool is_above(const ErrorBar& bar, const ErrorStatistics& statistics);

// --- by kind ---

struct CasePrediction {
  nlohmann::ordered_json prediction;
  std::vector<ValidationRow> rows;
};
// Throw Error with the reason when a case is not modelled.
[[nodiscard]] CasePrediction predict_parameters(const nlohmann::ordered_json& truth_case, const std::filesystem::path& document);
[[nodiscard]] CasePrediction predict_saved_activations(const nlohmann::ordered_json& truth_case,
                                                       const std::filesystem::path& document);
[[nodiscard]] CasePrediction predict_fsdp2_memory(const nlohmann::ordered_json& truth_case, const std::filesystem::path& document);

}  // namespace shardplan
