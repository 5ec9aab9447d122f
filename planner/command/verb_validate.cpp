// `plan validate`: truth documents against predictions. Exit 6 when a bar of --fail-above is missed.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/write_file.h"
#include "planner/answers/validate.h"
#include "planner/command/verbs.h"

namespace shardplan {

ExitCode run_validate(const CommandLine& line, const Surroundings&) {
  if (line.positionals.empty()) throw UsageError("plan validate needs truth documents", "", "plan validate FILE...");
  const std::vector<std::filesystem::path> files(line.positionals.begin(), line.positionals.end());
  const std::optional<std::string> predictions = line.value("predictions");
  if (predictions) require_writable(*predictions);
  std::vector<ErrorBar> bars;
  if (line.has("fail-above")) {
    for (const std::string& text : line.given.at("fail-above").values) bars.push_back(error_bar_from_text(text));
  }

  const std::vector<ValidationReport> reports = validate_documents(files);
  if (predictions && reports.size() != 1) {
    throw UsageError(fmt::format("--predictions takes one kind of document, {} were given", reports.size()), "",
                     "one run for each kind");
  }
  bool missed = false;
  std::string text;
  for (const ValidationReport& report : reports) {
    text += text_from_validation(report);
    const ErrorStatistics statistics = statistics_of(report);
    for (const ErrorBar& bar : bars) {
      if (!is_above(bar, statistics)) continue;
      text += fmt::format("{}: {} is above {}\n", report.source_kind, bar.statistic, bar.fraction);
      missed = true;
    }
  }
  print_result(text);
  if (predictions) write_file_whole(*predictions, predictions_document(reports.front()).dump(1) + "\n");
  return missed ? ExitCode::ToleranceExceeded : ExitCode::Ok;
}

}  // namespace shardplan
