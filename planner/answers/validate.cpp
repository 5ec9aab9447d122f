#include "planner/answers/validate.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/error.h"
#include "core/json_reader.h"

namespace shardplan {
namespace {

using Json = nlohmann::ordered_json;

using Predictor = CasePrediction (*)(const Json&, const std::filesystem::path&);

struct Kind {
  std::string_view name;
  Predictor predict;
};
constexpr Kind kKinds[] = {
    {"parameters", predict_parameters},
    {"saved_activations", predict_saved_activations},
    {"fsdp2_memory", predict_fsdp2_memory},
};

Predictor predictor_of(JsonReader& reader) {
  const std::string kind = reader.string("kind");
  std::vector<std::string> names;
  for (const Kind& known : kKinds) {
    if (known.name == kind) return known.predict;
    names.emplace_back(known.name);
  }
  reader.fail("kind", fmt::format("documents of kind \"{}\" are not predicted", kind),
              fmt::format("one of {}", fmt::join(names, ", ")));
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double nearest_rank(std::vector<double> values, double fraction) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const auto rank = static_cast<std::size_t>(std::ceil(fraction * static_cast<double>(values.size())));
  return values[std::max<std::size_t>(rank, 1) - 1];
}

void validate_document(const std::filesystem::path& file, std::vector<ValidationReport>& reports) {
  const Json document = json_from_file(file);
  JsonReader reader(document, file.string());
  const Predictor predict = predictor_of(reader);
  const std::string kind = reader.string("kind");
  auto report = std::find_if(reports.begin(), reports.end(), [&](const ValidationReport& r) { return r.source_kind == kind; });
  if (report == reports.end()) {
    report = reports.insert(reports.end(), ValidationReport{});
    report->source_kind = kind;
  }
  for (JsonReader& truth_case : reader.array("cases")) {
    const std::string id = truth_case.string("id");
    if (report->predictions.contains(id) || report->missing.contains(id))
      truth_case.fail("id", fmt::format("the case \"{}\" stands twice", id));
    try {
      CasePrediction made = predict(truth_case.raw(), file);
      report->predictions[id] = std::move(made.prediction);
      for (ValidationRow& row : made.rows) {
        row.id = id;
        row.relative_error = row.truth == 0 ? (row.predicted == 0 ? 0.0 : 1.0) : (row.predicted - row.truth) / row.truth;
        report->rows.push_back(std::move(row));
      }
    } catch (const Error& error) {
      report->missing[id] = error.problem();
    }
  }
}

}  // namespace

std::vector<ValidationReport> validate_documents(const std::vector<std::filesystem::path>& files) {
  if (files.empty()) throw UsageError("no document to validate", "validate FILE...", "name at least one truth document");
  std::vector<ValidationReport> reports;
  for (const std::filesystem::path& file : files) validate_document(file, reports);
  return reports;
}

ErrorStatistics statistics_of(const ValidationReport& report) {
  std::vector<double> with_sign, without_sign;
  for (const ValidationRow& row : report.rows) {
    with_sign.push_back(row.relative_error);
    without_sign.push_back(std::abs(row.relative_error));
  }
  return {.count = static_cast<std::int64_t>(report.rows.size()),
          .median_fraction = median(without_sign),
          .p90_fraction = nearest_rank(without_sign, 0.9),
          .worst_fraction = nearest_rank(without_sign, 1.0),
          .signed_median_fraction = median(with_sign)};
}

std::string text_from_validation(const ValidationReport& report) {
  std::string text =
      fmt::format("{}\n  {:<34} {:<22} {:>16} {:>16} {:>10}\n", report.source_kind, "case", "figure", "predicted", "true", "error");
  for (const ValidationRow& row : report.rows) {
    text += fmt::format("  {:<34} {:<22} {:>16.0f} {:>16.0f} {:>9.4f}%\n", row.id, row.figure, row.predicted, row.truth,
                        100 * row.relative_error);
    for (const std::string& field : row.differs) text += fmt::format("    differs: {}\n", field);
  }
  for (const auto& [id, reason] : report.missing.items())
    text += fmt::format("  {:<34} missing: {}\n", id, reason.get<std::string>());
  const ErrorStatistics s = statistics_of(report);
  const auto equal = std::count_if(report.rows.begin(), report.rows.end(),
                                   [](const ValidationRow& row) { return row.relative_error == 0 && row.differs.empty(); });
  text += fmt::format("  predicted {}, missing {}, equal in every field {}\n", s.count, report.missing.size(), equal);
  text += fmt::format("  error: median {:.4f}%, p90 {:.4f}%, worst {:.4f}%, signed median {:.4f}%\n", 100 * s.median_fraction,
                      100 * s.p90_fraction, 100 * s.worst_fraction, 100 * s.signed_median_fraction);
  return text;
}

Json predictions_document(const ValidationReport& report) {
  return {{"schema_version", 1},
          {"kind", "shardplan.predictions"},
          {"source_kind", report.source_kind},
          {"predictions", report.predictions},
          {"missing", report.missing}};
}

ErrorBar error_bar_from_text(std::string_view text) {
  const std::size_t equals = text.find('=');
  const std::string_view statistic = text.substr(0, equals);
  if (equals != std::string_view::npos && (statistic == "median" || statistic == "p90" || statistic == "worst")) {
    const std::string_view number = text.substr(equals + 1);
    double fraction = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), fraction);
    if (error == std::errc{} && end == number.data() + number.size() && fraction >= 0 && std::isfinite(fraction))
      return {std::string(statistic), fraction};
  }
  throw UsageError(fmt::format("\"{}\" is no bar", text), "--fail-above",
                   "median=F, p90=F or worst=F with a fraction F, for example p90=0.05");
}

bool is_above(const ErrorBar& bar, const ErrorStatistics& statistics) {
  if (bar.statistic == "median") return statistics.median_fraction > bar.fraction;
  if (bar.statistic == "p90") return statistics.p90_fraction > bar.fraction;
  return statistics.worst_fraction > bar.fraction;
}

}  // namespace shardplan
