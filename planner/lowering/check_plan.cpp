#include "planner/lowering/check_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/units.h"
#include "planner/lowering/program_laws.h"

namespace shardplan {
namespace {

void check_numbers(const Plan& plan, std::vector<PlanProblem>& problems) {
  if (plan.mesh.shard < 1 || plan.mesh.replicate < 1 || plan.mesh.tp < 1)
    problems.push_back({"degrees of the mesh are at least 1",
                        fmt::format("shard {}, replicate {}, tp {}", plan.mesh.shard, plan.mesh.replicate, plan.mesh.tp)});
  if (plan.num_nodes < 1 || plan.mesh.world() % std::max(plan.num_nodes, 1) != 0)
    problems.push_back(
        {"every node has the same number of ranks", fmt::format("{} ranks on {} nodes", plan.mesh.world(), plan.num_nodes)});
  if (plan.micro_batch < 1 || plan.grad_accum < 1)
    problems.push_back({"a step has sequences", fmt::format("micro-batch {}, {} micro-steps", plan.micro_batch, plan.grad_accum)});
  const std::int64_t batch = plan.micro_batch * plan.grad_accum * plan.mesh.shard * plan.mesh.replicate;
  if (plan.workload.global_batch != 0 && plan.workload.global_batch != batch)
    problems.push_back({"micro-batches of all ranks make the global batch",
                        fmt::format("{} sequences a step, asked for {}", batch, plan.workload.global_batch)});
  if (plan.kernels.device != plan.device) problems.push_back({"kernels are those of the device", "kernels"});
}

void check_spans(const Plan& plan, const Segments& segments, std::vector<PlanProblem>& problems) {
  std::int32_t next = 1;
  for (const SpanPlan& span : plan.spans) {
    if (span.first.value < next || span.last < span.first || span.last.at() >= segments.all.size())
      problems.push_back({"recomputed spans are ascending and disjoint, and leave out the first segment",
                          fmt::format("span {} to {}", span.first.value, span.last.value)});
    next = span.last.value + 1;
  }
}

// Every parameter lies once, inside its group; stretches of all ranks cover the group and are equal.
void check_layout(const Plan& plan, const Lowered& lowered, std::vector<PlanProblem>& problems) {
  std::vector<std::int32_t> times(lowered.graph->table.parameters.size(), 0);
  for (const UnitLayout& unit : lowered.units) {
    for (const FlatGroup& group : unit.groups) {
      std::int64_t end = 0;
      for (const ParameterSlot& slot : group.slots) {
        ++times[slot.parameter.at()];
        const Parameter& parameter = lowered.graph->table.parameters[slot.parameter.at()];
        if (slot.offset != end || slot.numel != parameter.numel() || parameter.trainable != group.trainable)
          problems.push_back({"parameters lie one after the other in the group of their kind", parameter.name});
        end = slot.offset + slot.numel;
      }
      if (group.numel != end || group.stretch_numel * plan.mesh.shard != group.padded_numel || group.padded_numel < end ||
          group.padded_numel - end >= plan.mesh.shard)
        problems.push_back({"equal stretches cover a unit with less padding than there are ranks", "unit " + unit.name});
    }
  }
  for (std::size_t p = 0; p < times.size(); ++p)
    if (times[p] != 1) problems.push_back({"every parameter belongs to exactly one unit", lowered.graph->table.parameters[p].name});
}

}  // namespace

std::vector<PlanProblem> check_plan(const Plan& plan, const Lowered& lowered, std::int64_t limit_bytes) {
  std::vector<PlanProblem> problems;
  check_numbers(plan, problems);
  check_spans(plan, lowered.segments, problems);
  check_layout(plan, lowered, problems);
  for (const LoweredProgram& phase : lowered.phases) {
    const ProgramVerdict verdict = judge_program(plan, lowered, phase);
    problems.insert(problems.end(), verdict.problems.begin(), verdict.problems.end());
    if (limit_bytes > 0 && verdict.peak_bytes > limit_bytes)
      problems.push_back(
          {"the peak fits the limit", fmt::format("{}: {} B needed, {} B allowed, {} B too much", phase_name(phase.program.phase),
                                                  text_with_thousands(verdict.peak_bytes), text_with_thousands(limit_bytes),
                                                  text_with_thousands(verdict.peak_bytes - limit_bytes))});
  }
  return problems;
}

}  // namespace shardplan
