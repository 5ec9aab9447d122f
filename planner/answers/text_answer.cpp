#include "planner/answers/text_answer.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/units.h"
#include "planner/answers/amounts.h"
#include "planner/answers/explain.h"
#include "planner/graph/parameter_table.h"

namespace shardplan {
namespace {

constexpr int kWidth = 96;

struct Painter {
  bool colour = false;
  [[nodiscard]] std::string operator()(const std::string& text, std::string_view code) const {
    return colour ? fmt::format("\033[{}m{}\033[0m", code, text) : text;
  }
};

std::string between(const std::string& left, const std::string& right) {
  const int gap = kWidth - static_cast<int>(left.size() + right.size());
  return left + std::string(static_cast<std::size_t>(std::max(gap, 2)), ' ') + right;
}

std::string plural(std::int64_t n, std::string_view one) { return fmt::format("{} {}{}", n, one, n == 1 ? "" : "s"); }

std::string training_text(const PlanRequest& request) {
  const std::vector<std::string>& words = request.workload.train;
  std::string text =
      words == std::vector<std::string>{"all"} ? "full fine-tuning" : fmt::format("trains {}", fmt::join(words, " + "));
  if (!request.workload.freeze.empty()) text += fmt::format(", freezes {}", fmt::join(request.workload.freeze, " and "));
  return text + ", AdamW";
}

std::string precision_text(const Precision& p) {
  const auto name = [](DType dtype) { return dtype_name(dtype); };
  std::string text = p.stored == p.state ? fmt::format("{} weights and states", name(p.stored))
                                         : fmt::format("{} weights, {} states", name(p.stored), name(p.state));
  text += fmt::format(", {} compute", name(p.compute));
  if (p.reduce != p.stored) text += fmt::format(", {} reduce", name(p.reduce));
  return text;
}

// Right beside the question, so that a figure is never read without what it is for.
std::string header(const Answer& answer, const Painter& paint) {
  const PlanRequest& request = answer.request;
  const std::string model =
      fmt::format("{} ({})", request.model.name, text_from_count(parameter_table(request.model).total_numel()));
  std::string text = between(fmt::format("{}, {}", model, training_text(request)),
                             fmt::format("{} x {}, {}", request.gpus, request.hardware.name, plural(request.nodes, "node"))) +
                     "\n";
  std::string job = fmt::format("seq {}, {}", request.workload.seq_len, precision_text(request.workload.precision));
  if (request.workload.global_batch > 0) job += fmt::format(", global batch {}", request.workload.global_batch);
  const std::string verdict = answer.best ? "FITS" : "DOES NOT FIT";
  text += between(job, verdict);
  if (paint.colour) text.replace(text.size() - verdict.size(), verdict.size(), paint(verdict, answer.best ? "1;32" : "1;31"));
  return text + "\n";
}

// 32 cells for the capacity: what is there for good, what is gathered and reduced, what is computed, what is outside the allocator.
std::string bar(const CategoryBytes& at_peak, std::int64_t capacity_bytes) {
  using C = MemoryCategory;
  constexpr int kCells = 32;
  const std::int64_t states = at_peak[C::ShardedParam] + at_peak[C::Buffer] + at_peak[C::ShardedGrad] + at_peak[C::OptState];
  const std::int64_t gathered = at_peak[C::UnshardedParam] + at_peak[C::UnshardedGrad] + at_peak[C::AllGather] +
                                at_peak[C::ReduceScatter] + at_peak[C::AllReduce];
  const std::int64_t outside = at_peak[C::CudaContext] + at_peak[C::Nccl];
  const std::int64_t computed = at_peak.total() - states - gathered - outside;
  std::string cells;
  std::int64_t reached = 0;
  for (const auto& [bytes, mark] :
       {std::pair{states, '#'}, std::pair{gathered, '%'}, std::pair{computed, '+'}, std::pair{outside, '='}}) {
    reached += bytes;
    const std::int64_t upto = std::min<std::int64_t>((reached * kCells + capacity_bytes / 2) / capacity_bytes, kCells);
    if (upto > static_cast<std::int64_t>(cells.size())) cells.resize(static_cast<std::size_t>(upto), mark);
  }
  cells.resize(kCells, '.');
  return fmt::format("[{}]", cells);
}

std::string hidden_text(const Forecast& f) {
  double busy = 0, exposed = 0;
  for (const CommunicationLine& line : f.communication) {
    busy += line.seconds;
    exposed += line.exposed_seconds;
  }
  return busy == 0 ? "no communication" : fmt::format("communication {:.0f} % hidden", 100 * (1 - std::min(exposed / busy, 1.0)));
}

std::string headline(const Answer& answer) {
  const Forecast& f = answer.best->forecast;
  const AmountUnit unit = amount_unit(f.capacity_bytes);
  const bool on_cpu = answer.request.hardware.device == DeviceKind::Cpu;
  const std::string each = on_cpu ? "rank" : "GPU";
  std::string text;
  // CPU ranks have no context: what binds is what tensors ask for.
  const std::int64_t used = on_cpu ? f.peak_requested_bytes : f.device_bytes;
  std::string free = fmt::format("{} free", amount_text(f.capacity_bytes - used, unit));
  const std::int64_t half = (f.estimate.device.high_bytes - f.estimate.device.low_bytes) / 2;
  if (!on_cpu && half > 0) free += fmt::format(" (+-{})", amount_text(half, unit));
  text += fmt::format(
      "  memory   {:<31} {}  {}\n",
      fmt::format("{} of {} {} on each {}", amount_text(used, unit), amount_text(f.capacity_bytes, unit), unit.name, each),
      bar(f.by_category, f.capacity_bytes), free);
  std::string speed = fmt::format("step {}", text_from_seconds(f.step_seconds));
  if (f.model_flops_utilization_fraction && !on_cpu)
    speed += fmt::format(", MFU {:.0f} %", 100 * *f.model_flops_utilization_fraction);
  text += fmt::format(
      "  speed    {:<31} {}, {}\n",
      fmt::format("{} tokens/s per {}", text_with_thousands(static_cast<std::int64_t>(f.tokens_per_second_per_gpu)), each), speed,
      hidden_text(f));
  std::string others;
  for (const PhaseForecast& phase : f.phases) {
    if (phase.phase == f.peak_phase) continue;
    others +=
        fmt::format("{}{} {}", others.empty() ? "" : ", ", phase_text(phase.phase), amount_text(phase.peak_allocated_bytes, unit));
  }
  text += fmt::format("  peak     {}{}{}\n", phase_text(f.peak_phase), f.peak_task.empty() ? "" : ", ", f.peak_task);
  text += fmt::format("           {} (allocated, {})\n", others, unit.name);
  return text;
}

std::string decision_text(const Explanation& e) {
  if (e.decision == "mesh") return e.chosen;
  if (e.decision == "root") return fmt::format("{} root", e.chosen);
  if (e.decision == "reshard-after-forward") return fmt::format("reshard {}", e.chosen);
  if (e.decision == "grad-accum") return e.chosen == "1" ? "no accumulation" : fmt::format("accumulate {}", e.chosen);
  if (e.decision == "accum-sync")
    return fmt::format("reduce {}", e.chosen == "last" ? "in the last micro-step" : "in every micro-step");
  return fmt::format("{} {}", e.decision, e.chosen);
}

// Breaks at blanks so that no line is longer than the page; further lines start at `indent`.
std::string wrapped(const std::string& text, std::size_t indent) {
  std::string result, line;
  const std::size_t room = kWidth - indent;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t blank = std::min(text.find(' ', at), text.size());
    const std::string word = text.substr(at, blank - at);
    if (!line.empty() && line.size() + 1 + word.size() > room) {
      result += line + "\n" + std::string(indent, ' ');
      line.clear();
    }
    line += (line.empty() ? "" : " ") + word;
    at = blank + 1;
  }
  return result + line;
}

std::string decisions(const Answer& answer, const TextOptions& options, const Painter& paint) {
  std::string text = paint("  decided                   and what it bought", "1") + "\n";
  const AmountUnit unit = amount_unit(answer.best->forecast.capacity_bytes);
  for (const Explanation& e : answer.explanation) {
    text += fmt::format("  {:<25} {}\n", decision_text(e), wrapped(e.because, 28));
    if (!options.explain) continue;
    for (const OtherWord& other : e.instead_of) {
      text += fmt::format("      {:<21} {:>9} {}  {:>9} tokens/s{}\n", other.value, amount_text(other.peak_allocated_bytes, unit),
                          unit.name, text_with_thousands(static_cast<std::int64_t>(other.tokens_per_second_per_gpu)),
                          other.over_bytes > 0 ? fmt::format("   misses by {}", amount_text(other.over_bytes, unit)) : "");
    }
  }
  return text;
}

// A name that is too long for its column has a line of its own.
constexpr std::size_t kNameColumn = 38;

std::string table_row(const std::string& name, const PlannedChoice& planned, const AmountUnit& unit) {
  const bool is_long = name.size() > kNameColumn;
  const Forecast& f = planned.forecast;
  return fmt::format("  {}{:<{}} {:>8} {:>14}  {:<17} {:>11}\n", is_long ? name + "\n  " : "", is_long ? "" : name, kNameColumn,
                     amount_text(f.device_bytes, unit), text_with_thousands(static_cast<std::int64_t>(f.tokens_per_second_per_gpu)),
                     text_from_recompute(planned.choice.recompute), planned.choice.micro_batch);
}

std::string table_head(const std::string& name, const AmountUnit& unit, const PlanRequest& request, const Painter& paint) {
  const std::string speed = request.hardware.device == DeviceKind::Cpu ? "tokens/s/rank" : "tokens/s/GPU";
  return paint(fmt::format("  {:<{}} {:>8} {:>14}  {:<17} {:>11}", name, kNameColumn, unit.name, speed, "recompute", "micro-batch"),
               "1") +
         "\n";
}

std::string alternatives(const Answer& answer, const Painter& paint) {
  if (answer.alternatives.empty()) return "";
  const AmountUnit unit = amount_unit(answer.best->forecast.capacity_bytes);
  std::string text = table_head("also worth knowing", unit, answer.request, paint);
  for (const Alternative& a : answer.alternatives) {
    text += table_row(fmt::format("{}", fmt::join(a.changes, " ")), a.planned, unit);
  }
  return text + "\n";
}

std::string next_steps(const TextOptions& options) {
  if (options.plan_file.empty())
    return "next: the same command with -o plan.json, then execute plan.json --model DIR --data FILE --out RUN\n";
  return fmt::format("next: execute {0} --model DIR --data FILE --out RUN\n      plan simulate {0}\n", options.plan_file);
}

// A flag that the command has already is exchanged, not given twice.
std::string next_change(const std::string& change, const std::map<std::string, std::string>& given) {
  if (change.starts_with("without")) return fmt::format("next: the same command but {}\n", change);
  std::string text = fmt::format("next: the same command with {}", change), replaced;
  for (const auto& [flag, value] : given) {
    if (fmt::format(" {} ", change).find(fmt::format(" {} ", flag)) != std::string::npos)
      replaced += fmt::format(" {} {}", flag, value);
  }
  return text + (replaced.empty() ? "" : " in place of" + replaced) + "\n";
}

std::string infeasible_text(const Answer& answer, const TextOptions& options, const Painter& paint) {
  const Infeasible& i = *answer.infeasible;
  const Forecast& f = i.closest.forecast;
  const AmountUnit unit = amount_unit(std::max(f.capacity_bytes, f.device_bytes));
  const bool on_cpu = answer.request.hardware.device == DeviceKind::Cpu;
  const std::int64_t needs = on_cpu ? f.peak_requested_bytes : f.estimate.device.high_bytes;
  std::string text = fmt::format("  binding  {}\n", i.binding);
  text +=
      fmt::format("  short by {} {}: the plan that needs least wants {} of {} on each {}\n", amount_text(i.short_by_bytes, unit),
                  unit.name, amount_text(needs, unit), amount_text(f.capacity_bytes, unit), on_cpu ? "rank" : "GPU");
  text += fmt::format("  closest  {}\n\n", wrapped(text_from_choice(i.closest.choice), 11));
  text += fmt::format("  at its peak, {}\n{}\n", unit.name, breakdown_text(f.by_category, 4));
  if (i.remedies.empty()) return text + "no single change that is tried makes it fit\n";
  text += table_head("what would fit", unit, answer.request, paint);
  for (const Remedy& remedy : i.remedies) {
    text += table_row(remedy.change, remedy.planned, unit);
  }
  return text + "\n" + next_change(i.remedies.front().change, options.given);
}

}  // namespace

std::string phase_text(Phase phase) {
  switch (phase) {
    case Phase::Load:
      return "load";
    case Phase::Step1:
      return "step 1";
    case Phase::Step2:
      return "step 2";
    case Phase::Eval:
      return "evaluation";
    case Phase::Save:
      return "save";
  }
  return {};
}

std::string breakdown_text(const CategoryBytes& bytes, int indent) {
  struct Line {
    std::string_view name;
    std::int64_t bytes;
  };
  std::vector<Line> lines;
  for (int c = 0; c < kNumMemoryCategories; ++c) {
    const auto category = static_cast<MemoryCategory>(c);
    if (bytes[category] > 0) lines.push_back({category_name(category), bytes[category]});
  }
  std::stable_sort(lines.begin(), lines.end(), [](const Line& a, const Line& b) { return a.bytes > b.bytes; });
  const AmountUnit unit = amount_unit(bytes.total());
  std::vector<std::int64_t> parts;
  for (const Line& line : lines) parts.push_back(line.bytes);
  const std::vector<std::int64_t> hundredths = hundredths_that_add_up(parts, unit);
  std::vector<std::string> cells;
  const auto cell = [](std::string_view name, std::int64_t h) {
    return fmt::format("{:<16}{:>9}", name, fmt::format("{}.{:02}", h / 100, h % 100));
  };
  std::size_t num_rest = 0;  // categories that round to nothing
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (hundredths[i] == 0) {
      ++num_rest;
    } else {
      cells.push_back(cell(lines[i].name, hundredths[i]));
    }
  }
  if (num_rest > 0) cells.push_back(cell(fmt::format("{} more", num_rest), 0));
  const std::string total = amount_text(bytes.total(), unit);
  cells.push_back(fmt::format("{:<16}{:>9}", "= together", total));
  std::string text;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    text += i % 3 == 0 ? std::string(static_cast<std::size_t>(indent), ' ') : "     ";
    text += cells[i];
    if (i % 3 == 2 || i + 1 == cells.size()) text += "\n";
  }
  return text;
}

std::vector<std::string> warnings_of(const PlannedChoice& planned, const std::vector<UnitLayout>& units) {
  std::vector<std::string> warnings;
  std::int64_t all = 0;
  const auto numel_of = [](const UnitLayout& unit) {
    std::int64_t numel = 0;
    for (const FlatGroup& group : unit.groups) numel += group.numel;
    return numel;
  };
  for (const UnitLayout& unit : units) all += numel_of(unit);
  for (const UnitLayout& unit : units) {
    const double share = static_cast<double>(numel_of(unit)) / static_cast<double>(all);
    if (share > 0.3 && planned.plan.mesh.shard > 1) {
      warnings.push_back(fmt::format(
          "unit {} holds {:.0f} % of the parameters: they are gathered together, so sharding saves little of it while it is in use",
          unit.name, 100 * share));
    }
  }
  return warnings;
}

std::string text_from_answer(const Answer& answer, const TextOptions& options) {
  const Painter paint{options.colour};
  std::string text = header(answer, paint) + "\n";
  if (!answer.best) return text + infeasible_text(answer, options, paint);
  const Forecast& f = answer.best->forecast;
  text += headline(answer) + "\n";
  text += paint(fmt::format("  at the peak, {}", amount_unit(f.by_category.total()).name), "1") + "\n" +
          breakdown_text(f.by_category, 4) + "\n";
  text += decisions(answer, options, paint) + "\n";
  text += alternatives(answer, paint);
  return text + next_steps(options);
}

}  // namespace shardplan
