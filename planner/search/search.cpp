#include "planner/search/search.h"

#include <algorithm>
#include <tuple>

#include "core/error.h"
#include "planner/graph/parameter_table.h"

// [Note: bounds]
// 1. Memory. A gathered unit lives longer with less resharding and with more prefetch, and every other buffer is the same: so the
// leanest
//    choice of a mesh, wrapping, recompute word and batch shape reshards most and prefetches least. If it does not fit, none does.
// 2. Memory. Buffers of a step grow with the micro-batch and the order of tasks stays: if a micro-batch does not fit, no larger one
// does.
// 3. Time. A step takes at least as long as forward, recompute and backward on the compute stream: Evaluator::compute_floor. Its
// time per
//    token does not rise with the micro-batch: a kernel takes launch + max(a + b * micro-batch, ...), rounded up to a nanosecond.
//    The rounding, at most a nanosecond in each launch, is given back.
// 4. Time. Less resharding and more prefetch take Gather tasks away or let them start earlier; with collectives alone on their
// links a
//    step is a longest path, which neither can lengthen: Figures::least_step of that choice is below the step time of all its
//    group.
// 5. Memory. With fewer shards every stretch is at least as large and every full buffer is the same but for padding, and the device
// holds
//    no fewer communicators: so fewer shards need no less, but for padding_slack(). Left out: one shard whose stored and compute
//    dtype agree, where the shard itself is the gathered parameter.
// The tests compare with enumeration of the whole space by full programs.
//
// [Note: gap] Objective throughput: no plan computes faster per token than forward and backward without recomputing (or with the
// recompute word that is given), at the largest micro-batch that fits under any word, with no time for anything else. Words that
// are not listed need no less memory than the leanest listed ones. Objective memory: every plan holds weights and states, shared by
// all ranks.

namespace shardplan {
namespace {

using std::chrono::nanoseconds;

// A mesh and a wrapping; reshard and prefetch vary inside.
struct Group {
  std::size_t mesh = 0, wrapping = 0;
  nanoseconds least{0};
};

// A batch shape with a recompute word.
struct Pair {
  std::size_t recompute = 0;
  BatchShape shape;
  nanoseconds floor{0};
};

// Share of a time that rounding every kernel up to a nanosecond can have added: no kernel is shorter than a launch.
double rounding_share(const HardwareSpec& hardware) { return 1e-9 / std::max(hardware.kernel_launch_seconds, 1e-9); }

class Searcher {
 public:
  Searcher(Evaluator& evaluator, std::int64_t capacity_bytes)
      : evaluator_(evaluator), request_(evaluator.request()), space_(knob_space(request_)), capacity_bytes_(capacity_bytes) {
    CHECK(!space_.meshes.empty() && !space_.wrappings.empty() && !space_.recomputes.empty(), "every knob has a word");
    leanest_reshard_ = *std::min_element(space_.reshards.begin(), space_.reshards.end(),
                                         [](ReshardWord a, ReshardWord b) { return keeps(a) < keeps(b); });
    quickest_reshard_ = *std::max_element(space_.reshards.begin(), space_.reshards.end(),
                                          [](ReshardWord a, ReshardWord b) { return keeps(a) < keeps(b); });
    leanest_prefetch_ = *std::min_element(space_.prefetches.begin(), space_.prefetches.end());
    quickest_prefetch_ = *std::max_element(space_.prefetches.begin(), space_.prefetches.end());
  }

  void find_fastest() {
    std::vector<Pair> open = first_pairs();
    const auto is_later = [&](const Pair& a, const Pair& b) { return is_slower(a, b); };
    std::make_heap(open.begin(), open.end(), is_later);
    while (!open.empty()) {
      std::pop_heap(open.begin(), open.end(), is_later);
      const Pair pair = open.back();
      open.pop_back();
      if (!can_beat_best(pair)) continue;
      examine(pair);
      if (!has_free_batch(request_) || pair.shape.micro_batch == 1) continue;
      Pair smaller = pair;
      --smaller.shape.micro_batch;
      smaller.floor = floor_of(smaller);
      if (!can_beat_best(smaller)) continue;
      open.push_back(smaller);
      std::push_heap(open.begin(), open.end(), is_later);
    }
  }

  // What the leanest choices need at least, and the first that needs so little.
  Found find_leanest() {
    Found leanest;
    bool is_first = true;
    std::vector<BatchShape> shapes = has_free_batch(request_) ? shapes_with_micro_batch(request_, 1) : batch_shapes(request_);
    for (std::size_t r = 0; r < space_.recomputes.size(); ++r) {
      for (const BatchShape& shape : shapes) {
        for (std::size_t m = 0; m < space_.meshes.size(); ++m) {
          for (std::size_t w = 0; w < space_.wrappings.size(); ++w) {
            const KnobChoice choice = choice_of({r, shape}, {m, w}, leanest_reshard_, leanest_prefetch_);
            const Figures figures = bounds(choice);
            if (!is_first && figures.binding_bytes >= leanest.figures.binding_bytes) continue;
            leanest = {.choice = choice, .figures = figures};
            is_first = false;
          }
        }
      }
    }
    return leanest;
  }

  [[nodiscard]] const std::optional<Found>& best() const { return best_; }
  [[nodiscard]] std::int64_t num_evaluated() const { return num_evaluated_; }
  [[nodiscard]] std::int64_t space_size() const {
    std::int64_t shapes = 0;
    if (has_free_batch(request_)) {
      for (const std::int64_t most : most_fitting_) shapes += std::max<std::int64_t>(most, 1);
    } else {
      shapes = static_cast<std::int64_t>(space_.recomputes.size() * batch_shapes(request_).size());
    }
    return shapes * static_cast<std::int64_t>(space_.meshes.size() * space_.wrappings.size() * space_.reshards.size() *
                                              space_.prefetches.size());
  }
  // See [Note: gap]. Sequences per nanosecond.
  [[nodiscard]] double ceiling() {
    std::vector<BatchShape> shapes;
    if (has_free_batch(request_)) {
      const std::int64_t most = *std::max_element(most_fitting_.begin(), most_fitting_.end());
      shapes = shapes_with_micro_batch(request_, most);
      // The search ended before memory did: any micro-batch that a plan can have bounds what lies beyond.
      if (most == kMostFreeMicroBatch) {
        for (BatchShape& shape : shapes) shape.micro_batch = most_micro_batch_of_a_plan(request_);
      }
    } else {
      shapes = batch_shapes(request_);
    }
    double most = 0;
    for (const BatchShape& shape : shapes) {
      KnobChoice choice = choice_of({0, shape}, {0, 0}, leanest_reshard_, leanest_prefetch_);
      if (!request_.knobs.recompute) choice.recompute = {};
      most = std::max(most, rate(shape, evaluator_.compute_floor(choice)) * (1 + rounding_share(request_.hardware)));
    }
    return most;
  }

 private:
  [[nodiscard]] static int keeps(ReshardWord word) {
    return word == ReshardWord::All ? 0 : word == ReshardWord::AllButLast ? 1 : 2;
  }

  [[nodiscard]] KnobChoice choice_of(const Pair& pair, const Group& group, ReshardWord reshard, std::int32_t prefetch) const {
    const Wrapping& wrapping = space_.wrappings[group.wrapping];
    return {.mesh = space_.meshes[group.mesh],
            .units = wrapping.units,
            .root = wrapping.root,
            .reshard = reshard,
            .recompute = space_.recomputes[pair.recompute],
            .micro_batch = pair.shape.micro_batch,
            .grad_accum = pair.shape.grad_accum,
            .accum_sync = pair.shape.accum_sync,
            .prefetch = prefetch,
            .init = space_.init};
  }

  Figures bounds(const KnobChoice& choice) {
    ++num_evaluated_;
    return evaluator_.bounds(choice);
  }

  [[nodiscard]] static double rate(const BatchShape& shape, nanoseconds time) {
    return static_cast<double>(shape.micro_batch * shape.grad_accum) / static_cast<double>(std::max<std::int64_t>(time.count(), 1));
  }
  [[nodiscard]] bool is_slower(const Pair& a, const Pair& b) const {
    const double ra = rate(a.shape, a.floor), rb = rate(b.shape, b.floor);
    if (ra != rb) return ra < rb;
    return std::tuple(a.recompute, a.shape.micro_batch, a.shape.accum_sync) <
           std::tuple(b.recompute, b.shape.micro_batch, b.shape.accum_sync);
  }
  nanoseconds floor_of(const Pair& pair) {
    return evaluator_.compute_floor(choice_of(pair, {0, 0}, leanest_reshard_, leanest_prefetch_));
  }

  // Not below the best, even if all rounding is given back. Equal rates stay in: memory decides between them.
  [[nodiscard]] bool can_beat_best(const BatchShape& shape, nanoseconds least, double slack) const {
    return !best_ || rate(shape, least) * (1 + slack) >= rate(shape_of(best_->choice), best_->figures.step);
  }
  [[nodiscard]] bool can_beat_best(const Pair& pair) const {
    return can_beat_best(pair.shape, pair.floor, has_free_batch(request_) ? rounding_share(request_.hardware) : 0);
  }
  [[nodiscard]] static BatchShape shape_of(const KnobChoice& c) { return {c.micro_batch, c.grad_accum, c.accum_sync}; }

  // Bound 5. What a unit's buffers can differ by between two shard degrees, at most: padding of the full ones in every dtype, and
  // the allocator's rounding of all of them.
  [[nodiscard]] std::int64_t padding_slack() const {
    constexpr std::int64_t kBuffersOfGroup = 6;  // shard, two moments, gradient, gathered, full gradient
    const std::int64_t groups = 2 * 2 * (request_.model.num_layers + 1);
    return groups * kBuffersOfGroup * (8 * space_.meshes.front().shard + allocator_rounding_bytes(request_.hardware));
  }
  [[nodiscard]] bool shares_shard(const MeshDegrees& mesh) const {
    return mesh.shard == 1 && request_.workload.precision.stored == request_.workload.precision.compute;
  }

  // Calls `visit(group, leanest figures)` for the meshes of one wrapping that bound 5 leaves, most sharded first; ends when it is
  // true.
  template <class Visit>
  bool each_mesh(const Pair& pair, std::size_t wrapping, Visit visit) {
    bool rest_is_larger = false;
    for (std::size_t m = 0; m < space_.meshes.size(); ++m) {
      if (rest_is_larger && !shares_shard(space_.meshes[m])) continue;
      const Group group{m, wrapping};
      const Figures lean = bounds(choice_of(pair, group, leanest_reshard_, leanest_prefetch_));
      if (lean.binding_bytes > capacity_bytes_ + padding_slack()) rest_is_larger = true;
      if (visit(group, lean)) return true;
    }
    return false;
  }

  // Bound 1. Tries the group that fitted last before the others.
  bool fits_somehow(std::size_t recompute, const BatchShape& shape) {
    const Pair pair{recompute, shape};
    const auto fits = [&](const Group& group, const Figures& lean) {
      if (lean.binding_bytes > capacity_bytes_) return false;
      last_fitting_ = group;
      return true;
    };
    if (fits(last_fitting_, bounds(choice_of(pair, last_fitting_, leanest_reshard_, leanest_prefetch_)))) return true;
    for (std::size_t w = 0; w < space_.wrappings.size(); ++w) {
      if (each_mesh(pair, w, fits)) return true;
    }
    return false;
  }
  bool fits_somehow(std::size_t recompute, std::int64_t micro_batch) {
    for (const BatchShape& shape : shapes_with_micro_batch(request_, micro_batch)) {
      if (fits_somehow(recompute, shape)) return true;
    }
    return false;
  }

  // Bound 2: the largest micro-batch that fits, looked for around `hint` with growing steps; 0: none.
  std::int64_t largest_that_fits(std::size_t recompute, std::int64_t hint) {
    const std::int64_t most = most_micro_batch(request_);
    std::int64_t fits = 0, fails = std::min(hint, most);
    if (fits_somehow(recompute, fails)) {
      fits = fails;
      for (std::int64_t step = 1;; step *= 2) {
        if (fits == most) return most;
        fails = std::min(fits + step, most);
        if (!fits_somehow(recompute, fails)) break;
        fits = fails;
      }
    } else {
      for (std::int64_t step = 1; fails > 1 && fits == 0; step *= 2) {
        const std::int64_t next = std::max<std::int64_t>(fails - step, 1);
        (fits_somehow(recompute, next) ? fits : fails) = next;
      }
      if (fits == 0) return 0;
    }
    while (fails - fits > 1) {
      const std::int64_t middle = fits + (fails - fits) / 2;
      (fits_somehow(recompute, middle) ? fits : fails) = middle;
    }
    return fits;
  }

  std::vector<Pair> first_pairs() {
    std::vector<Pair> pairs;
    const auto add = [&](std::size_t recompute, const BatchShape& shape) {
      Pair pair{recompute, shape};
      pair.floor = floor_of(pair);
      pairs.push_back(pair);
    };
    std::int64_t hint = 1;
    for (std::size_t r = 0; r < space_.recomputes.size(); ++r) {
      if (has_free_batch(request_)) {
        const std::int64_t most = largest_that_fits(r, hint);
        most_fitting_.push_back(most);
        hint = std::max(hint, most);
        if (most == 0) continue;
        for (const BatchShape& shape : shapes_with_micro_batch(request_, most)) add(r, shape);
      } else {
        for (const BatchShape& shape : batch_shapes(request_)) {
          if (fits_somehow(r, shape)) add(r, shape);
        }
      }
    }
    return pairs;
  }

  // Every choice of a pair that bounds 1 and 4 leave.
  void examine(const Pair& pair) {
    std::vector<Group> groups;
    for (std::size_t w = 0; w < space_.wrappings.size(); ++w) {
      each_mesh(pair, w, [&](Group group, const Figures& lean) {
        if (lean.binding_bytes > capacity_bytes_) return false;
        group.least = bounds(choice_of(pair, group, quickest_reshard_, quickest_prefetch_)).least_step;
        groups.push_back(group);
        return false;
      });
    }
    std::stable_sort(groups.begin(), groups.end(), [](const Group& a, const Group& b) { return a.least < b.least; });
    for (const Group& group : groups) {
      if (can_beat_best(pair.shape, group.least, 0)) examine(pair, group);
    }
  }

  void examine(const Pair& pair, const Group& group) {
    std::vector<Found> candidates;
    for (std::size_t s = 0; s < space_.reshards.size(); ++s) {
      for (std::size_t p = 0; p < space_.prefetches.size(); ++p) {
        Found found{.choice = choice_of(pair, group, space_.reshards[s], space_.prefetches[p])};
        found.figures = bounds(found.choice);
        // A larger micro-batch first, so that it wins a tie.
        found.rank = {static_cast<std::int64_t>(pair.recompute),
                      -pair.shape.micro_batch,
                      static_cast<std::int64_t>(pair.shape.accum_sync),
                      static_cast<std::int64_t>(group.mesh),
                      static_cast<std::int64_t>(group.wrapping),
                      static_cast<std::int64_t>(s),
                      static_cast<std::int64_t>(p),
                      0};
        if (found.figures.binding_bytes <= capacity_bytes_) candidates.push_back(found);
      }
    }
    std::stable_sort(candidates.begin(), candidates.end(),
                     [](const Found& a, const Found& b) { return a.figures.least_step < b.figures.least_step; });
    for (Found& found : candidates) {
      if (!can_beat_best(pair.shape, found.figures.least_step, 0)) continue;
      found.figures.step = evaluator_.step_time(found.choice);
      if (!best_ || is_faster(found, *best_, evaluator_)) best_ = found;
    }
  }

  Evaluator& evaluator_;
  const PlanRequest& request_;
  KnobSpace space_;
  std::int64_t capacity_bytes_;
  ReshardWord leanest_reshard_, quickest_reshard_;
  std::int32_t leanest_prefetch_ = 0, quickest_prefetch_ = 0;
  Group last_fitting_;
  std::vector<std::int64_t> most_fitting_;  // by recompute word, free batch only
  std::optional<Found> best_;
  std::int64_t num_evaluated_ = 0;
};

}  // namespace

bool is_faster(const Found& a, const Found& b, const Evaluator& evaluator) {
  // a.tokens / a.step > b.tokens / b.step, in whole numbers.
  __extension__ using Wide = __int128;
  const Wide left = static_cast<Wide>(evaluator.tokens(a.choice)) * b.figures.step.count();
  const Wide right = static_cast<Wide>(evaluator.tokens(b.choice)) * a.figures.step.count();
  if (left != right) return left > right;
  if (a.figures.binding_bytes != b.figures.binding_bytes) return a.figures.binding_bytes < b.figures.binding_bytes;
  return a.rank < b.rank;
}

namespace {

// Weights and moments that a rank holds at least: everything shared by all ranks.
std::int64_t least_resident_bytes(const PlanRequest& request) {
  ParameterTable table = parameter_table(request.model);
  select_trainable(table, request.model, request.workload.train, request.workload.freeze);
  const Precision& p = request.workload.precision;
  return (table.total_numel() * element_bytes(p.stored) + 2 * table.trainable_numel() * element_bytes(p.state)) / request.gpus;
}

}  // namespace

SearchResult search(Evaluator& evaluator) {
  SearchResult result;
  std::int64_t capacity = evaluator.capacity_bytes();
  std::int64_t evaluated = 0;
  if (evaluator.request().objective == Objective::Memory) {
    // The fastest of those that need no more than the leanest.
    Searcher leanest(evaluator, capacity);
    capacity = std::min(capacity, leanest.find_leanest().figures.binding_bytes);
    evaluated = leanest.num_evaluated();
  }
  Searcher searcher(evaluator, capacity);
  searcher.find_fastest();
  result.best = searcher.best();
  if (!result.best) {
    result.closest = searcher.find_leanest();
  } else if (evaluator.request().objective == Objective::Memory) {
    const double needs = static_cast<double>(result.best->figures.binding_bytes);
    result.facts.gap_fraction = 1 - static_cast<double>(least_resident_bytes(evaluator.request())) / needs;
  } else {
    const KnobChoice& c = result.best->choice;
    const double best_rate =
        static_cast<double>(c.micro_batch * c.grad_accum) / static_cast<double>(result.best->figures.step.count());
    result.facts.gap_fraction = std::max(0.0, searcher.ceiling() / best_rate - 1);
  }
  result.facts.space = searcher.space_size();
  result.facts.evaluated = evaluated + searcher.num_evaluated();
  return result;
}

}  // namespace shardplan
