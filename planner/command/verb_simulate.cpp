// `plan simulate`: a plan file gets time. Works for any number of ranks; nothing of them is needed.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/json_files.h"
#include "core/units.h"
#include "core/write_file.h"
#include "planner/answers/amounts.h"
#include "planner/answers/json_answer.h"
#include "planner/answers/text_answer.h"
#include "planner/command/request_from_flags.h"
#include "planner/command/verbs.h"
#include "simulator/trace_writers.h"

namespace shardplan {
namespace {

std::string summary(const Plan& plan, const Forecast& f, const std::vector<Timeline>& timelines, const HardwareSpec& hardware) {
  const AmountUnit unit = amount_unit(f.device_bytes);
  std::string text = fmt::format("{}, {} x {}, micro-batch {} x {} of {} tokens\n\n", plan.model_name, plan.mesh.world(),
                                 hardware.name, plan.micro_batch, plan.grad_accum, plan.workload.seq_len);
  text += fmt::format("  {:<10} {:>10} {:>7} {:>13} {:>13}   {}\n", "phase", "time", "tasks",
                      fmt::format("requested {}", unit.name), fmt::format("allocated {}", unit.name), "at the peak");
  for (std::size_t i = 0; i < timelines.size(); ++i) {
    const PhaseForecast& phase = f.phases[i];
    text +=
        fmt::format("  {:<10} {:>10} {:>7} {:>13} {:>13}   {}\n", phase_name(phase.phase),
                    text_from_seconds(seconds_from_nanoseconds(timelines[i].duration)), timelines[i].tasks.size(),
                    amount_text(phase.peak_requested_bytes, unit), amount_text(phase.peak_allocated_bytes, unit), phase.peak_task);
  }
  text += fmt::format("\n  largest peak ({}), {}\n{}", phase_name(f.peak_phase), unit.name, breakdown_text(f.by_category, 4));
  text += fmt::format("\n  step 2: {} tokens/s per {}", text_with_thousands(static_cast<std::int64_t>(f.tokens_per_second_per_gpu)),
                      hardware.device == DeviceKind::Cpu ? "rank" : "GPU");
  if (f.model_flops_utilization_fraction) text += fmt::format(", MFU {:.0f} %", 100 * *f.model_flops_utilization_fraction);
  text += "\n";
  if (!f.communication.empty()) {
    text += fmt::format("\n  {:<16} {:<10} {:>6} {:>14} {:>10} {:>10}\n", "collective", "axis", "calls", "bytes/rank", "time",
                        "exposed");
    for (const CommunicationLine& line : f.communication) {
      text += fmt::format("  {:<16} {:<10} {:>6} {:>14} {:>10} {:>10}\n", collective_name(line.collective), line.axis, line.calls,
                          text_from_bytes(line.bytes_per_rank), text_from_seconds(line.seconds),
                          text_from_seconds(line.exposed_seconds));
    }
  }
  return text;
}

}  // namespace

ExitCode run_simulate(const CommandLine& line, const Surroundings& around) {
  const std::string file = only_positional(line, "plan file");
  const Plan plan = plan_from_file(file);
  const HardwareSpec hardware = hardware_from_flags(line, around.configs, plan.hardware_id);
  const std::optional<std::string> trace = line.value("trace"), timeline_file = line.value("timeline");
  if (trace) require_writable(*trace);
  if (timeline_file) require_writable(*timeline_file);

  const Lowered lowered = lower(plan);
  const std::vector<Timeline> timelines = timelines_of(plan, lowered, hardware);
  const std::int64_t capacity =
      std::min(bytes_from_flag(line, "memory-limit").value_or(hardware.usable_memory_bytes), hardware.usable_memory_bytes);
  const Forecast forecast = forecast_plan(plan, lowered, hardware, capacity);
  if (trace) write_file_whole(*trace, perfetto_trace(timelines));
  if (timeline_file) {
    nlohmann::ordered_json document = {
        {"schema_version", 1}, {"kind", "shardplan.timelines"}, {"timelines", nlohmann::ordered_json::array()}};
    for (const Timeline& timeline : timelines) document["timelines"].push_back(json_from_timeline(timeline));
    write_file_whole(*timeline_file, document.dump() + "\n");
  }
  if (line.has("json")) {
    nlohmann::ordered_json document = {
        {"schema_version", 1}, {"kind", "shardplan.simulation"}, {"plan_hash", plan_hash(plan)}, {"hardware", hardware.id}};
    document["forecast"] = json_from_forecast(forecast);
    document["phases"] = nlohmann::ordered_json::array();
    for (const Timeline& timeline : timelines) {
      document["phases"].push_back({{"phase", phase_name(timeline.phase)},
                                    {"seconds", seconds_from_nanoseconds(timeline.duration)},
                                    {"tasks", timeline.tasks.size()},
                                    {"peak_requested_bytes", timeline.peak_requested_bytes}});
    }
    print_result(document.dump(2) + "\n");
  } else {
    print_result(summary(plan, forecast, timelines, hardware));
  }
  return ExitCode::Ok;
}

}  // namespace shardplan
