#include "planner/answers/alternatives.h"

#include <fmt/format.h>

#include <algorithm>

namespace shardplan {
namespace {

struct Idea {
  std::string label;
  std::vector<std::string> changes;
  PlanRequest request;
};

// In the order in which they are offered.
std::vector<Idea> ideas_for(const Found& best, const PlanRequest& request) {
  std::vector<Idea> ideas;
  const auto add = [&](const std::string& label, std::vector<std::string> changes, auto change) {
    Idea idea{.label = label, .changes = std::move(changes), .request = request};
    change(idea.request);
    ideas.push_back(std::move(idea));
  };
  const FixedKnobs& knobs = request.knobs;
  if (request.objective != Objective::Memory) {
    add("least memory", {"--objective memory"}, [](PlanRequest& r) { r.objective = Objective::Memory; });
  } else {
    add("most tokens per second", {"--objective throughput"}, [](PlanRequest& r) { r.objective = Objective::Throughput; });
  }
  if (!knobs.recompute) {
    for (const RecomputeWord& word : {RecomputeWord{.form = RecomputeWord::Form::Full}, RecomputeWord{}}) {
      if (word == best.choice.recompute) continue;
      add(fmt::format("recompute {}", text_from_recompute(word)), {fmt::format("--recompute {}", text_from_recompute(word))},
          [&](PlanRequest& r) { r.knobs.recompute = word; });
    }
  }
  const bool batch_divides =
      request.workload.global_batch == 0 || request.workload.global_batch % std::max(request.gpus / 2, 1) == 0;
  if (request.gpus % 2 == 0 && (request.gpus / 2) % ((request.nodes + 1) / 2) == 0 && batch_divides && !knobs.shard_degree &&
      !knobs.replicate_degree) {
    add(fmt::format("{} GPU{}", request.gpus / 2, request.gpus == 2 ? "" : "s"), {fmt::format("--gpus {}", request.gpus / 2)},
        [](PlanRequest& r) {
          r.gpus /= 2;
          r.nodes = (r.gpus + r.hardware.devices_per_node - 1) / r.hardware.devices_per_node;
        });
  }
  if (request.workload.precision.stored == DType::F32 && request.workload.precision.compute == DType::BF16) {
    add("bf16 weights and states", {"--stored-dtype bf16", "--state-dtype bf16"}, [](PlanRequest& r) {
      r.workload.precision.stored = DType::BF16;
      r.workload.precision.state = DType::BF16;
    });
  }
  if (!knobs.root && best.choice.units.form != UnitsWord::Form::Whole) {
    const RootWord other = best.choice.root == RootWord::Joint ? RootWord::Split : RootWord::Joint;
    add(fmt::format("{} root", text_from_root(other)), {fmt::format("--root {}", text_from_root(other))},
        [&](PlanRequest& r) { r.knobs.root = other; });
  }
  if (!knobs.micro_batch && has_free_batch(request) && best.choice.micro_batch > 1) {
    add("micro-batch 1", {"--micro-batch 1"}, [](PlanRequest& r) { r.knobs.micro_batch = 1; });
  }
  if (!knobs.reshard) {
    const ReshardWord other = best.choice.reshard == ReshardWord::All ? ReshardWord::None : ReshardWord::All;
    add(fmt::format("reshard {}", text_from_reshard(other)), {fmt::format("--reshard-after-forward {}", text_from_reshard(other))},
        [&](PlanRequest& r) { r.knobs.reshard = other; });
  }
  if (!knobs.units) {
    const UnitsWord other{.form = best.choice.units.form == UnitsWord::Form::Halves ? UnitsWord::Form::Blocks
                                                                                    : UnitsWord::Form::Halves};
    add(fmt::format("units {}", text_from_units(other)), {fmt::format("--units {}", text_from_units(other))},
        [&](PlanRequest& r) { r.knobs.units = other; });
  }
  return ideas;
}

}  // namespace

std::vector<Alternative> alternatives(const Found& best, Evaluator& evaluator, int most) {
  std::vector<Alternative> result;
  std::vector<KnobChoice> seen{best.choice};
  for (Idea& idea : ideas_for(best, evaluator.request())) {
    if (static_cast<int>(result.size()) >= most) break;
    Evaluator other(idea.request, evaluator);
    const SearchResult found = search(other);
    if (!found.best) continue;
    const bool same_request =
        idea.request.gpus == evaluator.request().gpus && idea.request.workload == evaluator.request().workload;
    if (same_request && std::find(seen.begin(), seen.end(), found.best->choice) != seen.end()) continue;
    if (same_request) seen.push_back(found.best->choice);
    result.push_back({.changes = idea.changes, .label = idea.label, .planned = other.full(found.best->choice)});
  }
  return result;
}

}  // namespace shardplan
