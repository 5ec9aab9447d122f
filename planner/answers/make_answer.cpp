#include "planner/answers/make_answer.h"

#include <fmt/format.h>

#include "core/error.h"
#include "planner/answers/alternatives.h"
#include "planner/answers/explain.h"
#include "planner/answers/remedies.h"
#include "planner/answers/text_answer.h"

namespace shardplan {
namespace {

// "device memory in step 2, backward of layers.31.mlp"
std::string binding_text(const PlannedChoice& closest, const PlanRequest& request) {
  const Forecast& f = closest.forecast;
  return fmt::format("{}{}, {}{}", request.hardware.device == DeviceKind::Cpu ? "requested memory" : "device memory",
                     request.memory_limit_bytes ? " (limited by --memory-limit)" : "", phase_text(f.peak_phase),
                     f.peak_task.empty() ? "" : ", " + f.peak_task);
}

}  // namespace

Answer make_answer(const PlanRequest& request, const AnswerOptions& options) {
  Answer answer{.request = request};
  Evaluator evaluator(request);
  const SearchResult found = search(evaluator);
  answer.search = found.facts;
  if (found.best) {
    answer.best = evaluator.full(found.best->choice);
    answer.warnings = warnings_of(*answer.best, evaluator.layouts(found.best->choice));
    answer.explanation = explain(*found.best, evaluator);
    answer.alternatives = alternatives(*found.best, evaluator, options.num_alternatives);
    return answer;
  }
  // Its step time was never needed; explanations compare with it.
  Found closest = *found.closest;
  closest.figures.step = evaluator.step_time(closest.choice);
  Infeasible infeasible;
  infeasible.closest = evaluator.full(found.closest->choice);
  infeasible.binding = binding_text(infeasible.closest, request);
  infeasible.short_by_bytes = found.closest->figures.binding_bytes - request.capacity_bytes();
  infeasible.remedies = remedies(request, options.hardware_configs);
  answer.explanation = explain(closest, evaluator);
  answer.infeasible = std::move(infeasible);
  return answer;
}

}  // namespace shardplan
