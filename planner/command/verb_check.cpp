// `plan check`: the judge's verdict on a plan file. Exit 0 when it is lawful and fits, 4 when a law is broken, 3 when it does not
// fit.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/units.h"
#include "planner/command/request_from_flags.h"
#include "planner/command/verbs.h"
#include "planner/lowering/check_plan.h"
#include "planner/search/forecast.h"

namespace shardplan {

ExitCode run_check(const CommandLine& line, const Surroundings& around) {
  const std::string file = only_positional(line, "plan file");
  const Plan plan = plan_from_file(file);
  const HardwareSpec hardware = hardware_from_flags(line, around.configs, plan.hardware_id);
  const Lowered lowered = lower(plan);
  const std::vector<PlanProblem> problems = check_plan(plan, lowered);
  const std::int64_t capacity =
      std::min(bytes_from_flag(line, "memory-limit").value_or(hardware.usable_memory_bytes), hardware.usable_memory_bytes);
  const std::int64_t needs = binding_bytes(forecast_plan(plan, lowered, hardware, capacity), hardware);
  const bool fits = needs <= capacity;

  if (line.has("json")) {
    nlohmann::ordered_json document = {
        {"schema_version", 1}, {"kind", "shardplan.check"}, {"plan_hash", plan_hash(plan)}, {"lawful", problems.empty()}};
    document["problems"] = nlohmann::ordered_json::array();
    for (const PlanProblem& problem : problems) document["problems"].push_back({{"law", problem.law}, {"where", problem.where}});
    document["fits"] = fits;
    document["needs_bytes"] = needs;
    document["capacity_bytes"] = capacity;
    print_result(document.dump(2) + "\n");
  } else {
    std::string text;
    for (const PlanProblem& problem : problems) text += fmt::format("broken: {}\n    at: {}\n", problem.law, problem.where);
    if (!fits) {
      text +=
          fmt::format("does not fit: needs {} of {} on each {}, {} too much\n", text_from_bytes(needs), text_from_bytes(capacity),
                      hardware.device == DeviceKind::Cpu ? "rank" : hardware.name, text_from_bytes(needs - capacity));
    }
    if (problems.empty() && fits) {
      text = fmt::format("ok: every law holds; needs {} of {} on each {}\n", text_from_bytes(needs), text_from_bytes(capacity),
                         hardware.device == DeviceKind::Cpu ? "rank" : hardware.name);
    }
    print_result(text);
  }
  if (!problems.empty()) return ExitCode::BadInput;
  return fits ? ExitCode::Ok : ExitCode::NothingFits;
}

}  // namespace shardplan
