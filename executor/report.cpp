#include "executor/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/json_files.h"
#include "core/units.h"

namespace shardplan {
namespace {

nlohmann::ordered_json side(const Timeline& timeline) {
  return {{"peak_requested_bytes", timeline.peak_requested_bytes},
          {"by_category_bytes", json_from_categories(timeline.at_peak)},
          {"host_peak_bytes", timeline.host_peak_bytes},
          {"seconds", seconds_from_nanoseconds(timeline.duration)}};
}

nlohmann::ordered_json difference(const PhaseComparison& phase) {
  const std::optional<TimelineDifference> d = first_difference(phase.predicted, phase.measured);
  if (!d) return nullptr;
  return {{"task", d->task}, {"what", d->what}, {"predicted_bytes", d->predicted_bytes}, {"measured_bytes", d->measured_bytes}};
}

std::string_view device_name(DeviceKind device) { return device == DeviceKind::Cuda ? "cuda" : "cpu"; }

}  // namespace

bool Report::equal() const {
  return std::all_of(phases.begin(), phases.end(),
                     [](const PhaseComparison& p) { return !first_difference(p.predicted, p.measured); });
}

nlohmann::ordered_json json_from_report(const Report& report) {
  nlohmann::ordered_json document = {{"schema_version", 1},
                                     {"kind", "shardplan.report"},
                                     {"plan_hash", report.plan_hash},
                                     {"device", device_name(report.device)},
                                     {"ranks", report.ranks},
                                     {"equal", report.equal()},
                                     {"phases", nlohmann::ordered_json::array()}};
  for (const PhaseComparison& p : report.phases) {
    document["phases"].push_back({{"phase", phase_name(p.measured.phase)},
                                  {"rank", p.measured.rank},
                                  {"predicted", side(p.predicted)},
                                  {"measured", side(p.measured)},
                                  {"workspace_bytes", p.workspace_peak_bytes},
                                  {"first_difference", difference(p)}});
  }
  return document;
}

std::string text_from_report(const Report& report) {
  std::string text = fmt::format("{:<7} {:>4}  {:>16}  {:>16}  {:>10}  {:>10}  {}\n", "phase", "rank", "predicted bytes",
                                 "measured bytes", "predicted", "measured", "memory");
  const PhaseComparison* highest = nullptr;
  for (const PhaseComparison& p : report.phases) {
    const std::optional<TimelineDifference> d = first_difference(p.predicted, p.measured);
    const std::string verdict = !d ? "equal"
                                   : fmt::format("differs first at '{}' ({}): {} predicted, {} measured", d->task, d->what,
                                                 d->predicted_bytes, d->measured_bytes);
    text += fmt::format("{:<7} {:>4}  {:>16}  {:>16}  {:>10}  {:>10}  {}\n", phase_name(p.measured.phase), p.measured.rank,
                        text_with_thousands(p.predicted.peak_requested_bytes), text_with_thousands(p.measured.peak_requested_bytes),
                        text_from_seconds(seconds_from_nanoseconds(p.predicted.duration)),
                        text_from_seconds(seconds_from_nanoseconds(p.measured.duration)), verdict);
    if (highest == nullptr || p.measured.peak_requested_bytes > highest->measured.peak_requested_bytes) highest = &p;
  }
  if (highest == nullptr) return text;
  text += fmt::format("\nat the highest peak, {} of rank {}\n{:<16} {:>16}  {:>16}\n", phase_name(highest->measured.phase),
                      highest->measured.rank, "category", "predicted bytes", "measured bytes");
  for (int c = 0; c < kNumMemoryCategories; ++c) {
    const auto category = static_cast<MemoryCategory>(c);
    const std::int64_t predicted = highest->predicted.at_peak[category], measured = highest->measured.at_peak[category];
    if (predicted == 0 && measured == 0) continue;
    text += fmt::format("{:<16} {:>16}  {:>16}\n", category_name(category), text_with_thousands(predicted),
                        text_with_thousands(measured));
  }
  std::int64_t workspace = 0;
  for (const PhaseComparison& p : report.phases) workspace = std::max(workspace, p.workspace_peak_bytes);
  if (workspace > 0)
    text += fmt::format("{:<16} {:>16}  {:>16}  packing inside 16-bit products, not part of the comparison\n", "Workspace", "-",
                        text_with_thousands(workspace));
  return text;
}

}  // namespace shardplan
