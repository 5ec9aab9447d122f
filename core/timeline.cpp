#include "core/timeline.h"

#include <algorithm>

namespace shardplan {
namespace {

std::string name_of(const TaskSpan& span) { return span.label.empty() ? std::string(task_kind_name(span.kind)) : span.label; }

TimelineDifference other_tasks(const std::string& task, const Timeline& predicted, const Timeline& measured) {
  return {.task = task,
          .predicted_bytes = static_cast<std::int64_t>(predicted.tasks.size()),
          .measured_bytes = static_cast<std::int64_t>(measured.tasks.size()),
          .what = "tasks"};
}

}  // namespace

std::optional<TimelineDifference> first_difference(const Timeline& predicted, const Timeline& measured) {
  const std::size_t shared = std::min(predicted.tasks.size(), measured.tasks.size());
  for (std::size_t i = 0; i < shared; ++i) {
    const TaskSpan& p = predicted.tasks[i];
    const TaskSpan& m = measured.tasks[i];
    if (p.kind != m.kind || p.label != m.label || p.micro_step != m.micro_step) return other_tasks(name_of(p), predicted, measured);
    if (p.peak_requested_bytes != m.peak_requested_bytes)
      return TimelineDifference{name_of(p), p.peak_requested_bytes, m.peak_requested_bytes, "peak"};
    if (p.after_requested_bytes != m.after_requested_bytes)
      return TimelineDifference{name_of(p), p.after_requested_bytes, m.after_requested_bytes, "after"};
  }
  if (predicted.tasks.size() == measured.tasks.size()) return std::nullopt;
  const Timeline& longer = predicted.tasks.size() > shared ? predicted : measured;
  return other_tasks(name_of(longer.tasks[shared]), predicted, measured);
}

}  // namespace shardplan
