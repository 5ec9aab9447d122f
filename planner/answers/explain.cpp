#include "planner/answers/explain.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/units.h"

namespace shardplan {
namespace {

// A choice that differs from the chosen one in one decision.
struct Other {
  std::string value;
  KnobChoice choice;
};

std::string bytes_text(std::int64_t bytes) { return text_from_bytes(bytes); }

std::string percent_text(double fraction) {
  const double percent = std::abs(fraction) * 100;
  return percent >= 9.95  ? fmt::format("{:.0f} %", percent)
         : percent >= 0.1 ? fmt::format("{:.1f} %", percent)
                          : std::string("under 0.1 %");
}

struct Compared {
  const Other* other = nullptr;
  Figures figures;
  double slower = 0;            // fraction by which `other` is slower per token than the chosen one; below 0: faster
  std::int64_t more_bytes = 0;  // that `other` needs
  std::int64_t over_bytes = 0;
};

// "none is 6.1 % faster, but misses by 3.20 GiB" or "5.0 % faster than full, for 2.31 GiB more" out of the comparisons.
std::string because_of(const std::vector<Compared>& all) {
  if (all.empty()) return "nothing else is possible";
  const Compared* missed = nullptr;     // does not fit, though faster: the nearest miss
  const Compared* runner_up = nullptr;  // fits: the fastest
  for (const Compared& c : all) {
    if (c.over_bytes > 0) {
      if (c.slower < 0 && (missed == nullptr || c.over_bytes < missed->over_bytes)) missed = &c;
    } else if (runner_up == nullptr || c.slower < runner_up->slower ||
               (c.slower == runner_up->slower && c.more_bytes < runner_up->more_bytes)) {
      runner_up = &c;
    }
  }
  std::string text;
  if (runner_up != nullptr) {
    const std::string& than = runner_up->other->value;
    const std::int64_t more = runner_up->more_bytes;
    if (runner_up->slower >= 5e-5) {
      text = fmt::format("{} faster than {}", percent_text(runner_up->slower), than);
      if (more < 0) text += fmt::format(", for {} more", bytes_text(-more));
      if (more > 0) text += fmt::format(", with {} less", bytes_text(more));
    } else if (runner_up->slower <= -5e-5) {
      text = fmt::format("{} less than {}, which is {} faster", bytes_text(more), than, percent_text(runner_up->slower));
    } else if (more > 0) {
      text = fmt::format("{} less than {}, no slower", bytes_text(more), than);
    } else {
      text = fmt::format("as good as {}", than);
    }
  }
  if (missed != nullptr) {
    text += fmt::format("{}{} misses by {}", text.empty() ? "" : "; ", missed->other->value, bytes_text(missed->over_bytes));
  } else if (runner_up == nullptr) {
    const auto nearest_miss =
        std::min_element(all.begin(), all.end(), [](const Compared& a, const Compared& b) { return a.over_bytes < b.over_bytes; });
    text = fmt::format("{} misses by {}", nearest_miss->other->value, bytes_text(nearest_miss->over_bytes));
  }
  return text;
}

Explanation explained(const std::string& decision, const std::string& chosen, bool given, const std::vector<Other>& others,
                      const Found& best, Evaluator& evaluator) {
  Explanation explanation{.decision = decision, .chosen = chosen, .given = given};
  std::vector<Compared> all;
  // Compared like with like: long accumulations by their times from below.
  const double best_seconds =
      seconds_from_nanoseconds(evaluator.quick(best.choice).step) / static_cast<double>(evaluator.tokens(best.choice));
  for (const Other& other : others) {
    Compared c{.other = &other, .figures = evaluator.quick(other.choice)};
    const double step_seconds = seconds_from_nanoseconds(c.figures.step);
    const double tokens = static_cast<double>(evaluator.tokens(other.choice));
    c.slower = step_seconds / tokens / best_seconds - 1;
    c.more_bytes = c.figures.binding_bytes - best.figures.binding_bytes;
    c.over_bytes = c.figures.binding_bytes - evaluator.capacity_bytes();
    explanation.instead_of.push_back({.value = other.value,
                                      .peak_allocated_bytes = c.figures.peak_allocated_bytes,
                                      .over_bytes = c.over_bytes,
                                      .step_seconds = step_seconds,
                                      .tokens_per_second_per_gpu = tokens / step_seconds,
                                      .counted_only = true});
    all.push_back(c);
  }
  explanation.because = given ? "as given" : because_of(all);
  return explanation;
}

std::string mesh_text(const MeshDegrees& mesh) {
  return mesh.replicate == 1 ? fmt::format("shard {}", mesh.shard)
                             : fmt::format("shard {} x {} copies", mesh.shard, mesh.replicate);
}

// The same request with nothing fixed: the words that a given knob could have had are worth knowing too.
KnobSpace open_space(const Evaluator& evaluator) {
  PlanRequest open = evaluator.request();
  open.knobs = {};
  return knob_space(open);
}

}  // namespace

std::string text_from_choice(const KnobChoice& c) {
  std::string text = fmt::format("{}, units {}", mesh_text(c.mesh), text_from_units(c.units));
  if (c.units.form != UnitsWord::Form::Whole) text += fmt::format(", {} root", text_from_root(c.root));
  text += fmt::format(", reshard {}, recompute {}, micro-batch {}", text_from_reshard(c.reshard), text_from_recompute(c.recompute),
                      c.micro_batch);
  if (c.grad_accum > 1) text += fmt::format(" x {} (reduced {})", c.grad_accum, text_from_accum_sync(c.accum_sync));
  return text + fmt::format(", prefetch {}", c.prefetch);
}

std::vector<Explanation> explain(const Found& best, Evaluator& evaluator) {
  const PlanRequest& request = evaluator.request();
  const FixedKnobs& knobs = request.knobs;
  const KnobSpace space = open_space(evaluator);
  const KnobChoice& chosen = best.choice;
  std::vector<Explanation> result;
  std::vector<Other> others;
  const auto finish = [&](const std::string& decision, const std::string& text, bool given) {
    result.push_back(explained(decision, text, given, others, best, evaluator));
    others.clear();
  };
  const auto vary = [&](const std::string& value, auto change) {
    KnobChoice other = chosen;
    change(other);
    if (!(other == chosen)) others.push_back({value, other});
  };

  // Another mesh changes what one micro-step must hold of a global batch; the micro-batch stays, accumulation follows.
  for (const MeshDegrees& mesh : space.meshes) vary(mesh_text(mesh), [&](KnobChoice& c) { c.mesh = mesh; });
  finish("mesh", mesh_text(chosen.mesh), knobs.shard_degree || knobs.replicate_degree);
  for (const Wrapping& wrapping : space.wrappings) {
    const bool is_whole = wrapping.units.form == UnitsWord::Form::Whole;
    if (is_whole || wrapping.root == chosen.root)
      vary(text_from_units(wrapping.units), [&](KnobChoice& c) { c.units = wrapping.units; });
  }
  finish("units", text_from_units(chosen.units), knobs.units.has_value());
  if (chosen.units.form != UnitsWord::Form::Whole) {
    for (const RootWord root : {RootWord::Split, RootWord::Joint})
      vary(text_from_root(root), [&](KnobChoice& c) { c.root = root; });
    finish("root", text_from_root(chosen.root), knobs.root.has_value());
  }
  for (const ReshardWord reshard : space.reshards) vary(text_from_reshard(reshard), [&](KnobChoice& c) { c.reshard = reshard; });
  finish("reshard-after-forward", text_from_reshard(chosen.reshard), knobs.reshard.has_value());
  for (const RecomputeWord& recompute : space.recomputes) {
    vary(text_from_recompute(recompute), [&](KnobChoice& c) { c.recompute = recompute; });
  }
  finish("recompute", text_from_recompute(chosen.recompute), knobs.recompute.has_value());

  if (has_free_batch(request) || knobs.micro_batch) {
    if (chosen.micro_batch > 1) vary(std::to_string(chosen.micro_batch - 1), [](KnobChoice& c) { --c.micro_batch; });
    vary(std::to_string(chosen.micro_batch + 1), [](KnobChoice& c) { ++c.micro_batch; });
  } else {
    for (const BatchShape& shape : batch_shapes(request)) {
      if (shape.micro_batch == chosen.micro_batch ||
          (shape.grad_accum > 1 && chosen.grad_accum > 1 && shape.accum_sync != chosen.accum_sync))
        continue;
      if (shape.accum_sync == AccumSync::Last && chosen.grad_accum == 1) continue;
      vary(fmt::format("{} x {}", shape.micro_batch, shape.grad_accum), [&](KnobChoice& c) {
        c.micro_batch = shape.micro_batch;
        c.grad_accum = shape.grad_accum;
        c.accum_sync = shape.accum_sync;
      });
    }
  }
  finish("micro-batch", std::to_string(chosen.micro_batch), knobs.micro_batch.has_value());
  result.push_back({.decision = "grad-accum",
                    .chosen = std::to_string(chosen.grad_accum),
                    .given = knobs.grad_accum.has_value(),
                    .because = knobs.grad_accum ? "as given"
                               : request.workload.global_batch == 0
                                   ? "the global batch is free: more micro-steps would be a larger batch"
                                   : fmt::format("{} sequences / {} ranks / micro-batch {}", request.workload.global_batch,
                                                 request.gpus, chosen.micro_batch)});
  if (chosen.grad_accum > 1) {
    for (const AccumSync sync : {AccumSync::Last, AccumSync::Every})
      vary(text_from_accum_sync(sync), [&](KnobChoice& c) { c.accum_sync = sync; });
    finish("accum-sync", text_from_accum_sync(chosen.accum_sync), knobs.accum_sync.has_value());
  }
  for (const std::int32_t prefetch : space.prefetches)
    vary(std::to_string(prefetch), [&](KnobChoice& c) { c.prefetch = prefetch; });
  finish("prefetch", std::to_string(chosen.prefetch), knobs.prefetch.has_value());
  result.push_back({.decision = "init",
                    .chosen = text_from_init(chosen.init),
                    .given = knobs.init.has_value(),
                    .because = knobs.init ? "as given"
                               : chosen.init == InitPath::Simple
                                   ? "the checkpoint fits the host's memory: every rank reads its own rows"
                               : request.host_capacity_bytes() == 0
                                   ? "host memory is not known: rank 0 alone reads the checkpoint and sends pieces"
                                   : "the checkpoint is larger than the host's memory: rank 0 alone reads it and sends pieces"});
  return result;
}

}  // namespace shardplan
