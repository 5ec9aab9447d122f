// `plan` and `plan explain`: the answer, as text or JSON, and the plan file.
#include <spdlog/spdlog.h>

#include <chrono>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "core/write_file.h"
#include "planner/answers/json_answer.h"
#include "planner/answers/make_answer.h"
#include "planner/answers/text_answer.h"
#include "planner/command/job_file.h"
#include "planner/command/request_from_flags.h"
#include "planner/command/verbs.h"

namespace shardplan {

ExitCode run_plan(const CommandLine& given, const Surroundings& around) {
  CommandLine line = given;
  if (const auto job = line.value("workload")) add_job_file(*job, line);
  const PlanRequest request = request_from_flags(line, around.configs);
  const std::optional<std::string> output = line.value("output");
  if (output) require_writable(*output);

  const auto begin = std::chrono::steady_clock::now();
  const AnswerOptions options{.num_alternatives = static_cast<int>(count_from_flag(line, "top", 3, 0, 100)),
                              .hardware_configs = around.configs / "hardware"};
  const Answer answer = make_answer(request, options);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  spdlog::info("{} plans in the space, {} forecast, {:.3f} s", answer.search.space, answer.search.evaluated, seconds);
  for (const std::string& warning : answer.warnings) spdlog::warn("{}", warning);

  if (output && answer.best) write_file_whole(*output, json_from_plan(answer.best->plan).dump(2) + "\n");
  if (line.has("json")) {
    // Wall time would make two equal requests differ: it is given with --verbose only.
    print_result(json_from_answer(answer, line.has("verbose") ? std::optional(seconds) : std::nullopt).dump(2) + "\n");
  } else {
    std::map<std::string, std::string> flags;
    for (const auto& [flag, value] : line.given) {
      if (!value.from_file && !value.values.empty()) flags["--" + flag] = value.values.back();
    }
    print_result(text_from_answer(answer, {.colour = around.colour,
                                           .explain = line.has("explain") || line.verb == Verb::Explain,
                                           .plan_file = answer.best && output ? *output : "",
                                           .given = std::move(flags)}));
  }
  return answer.best ? ExitCode::Ok : ExitCode::NothingFits;
}

}  // namespace shardplan
