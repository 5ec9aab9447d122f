// Laws that every lowered plan keeps, over random small models, selections, meshes, precisions and knobs.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "core/error.h"
#include "core/units.h"
#include "planner/graph/saved_values.h"
#include "planner/lowering/check_plan.h"
#include "planner/lowering/memory_count.h"
#include "planner/lowering/quick_forecast.h"
#include "tests/planner/tiny_plans.h"

namespace shardplan {
namespace {

const LoweredProgram& phase_of(const Lowered& lowered, Phase phase) {
  for (const LoweredProgram& p : lowered.phases)
    if (p.program.phase == phase) return p;
  throw std::logic_error("no such phase");
}

RC_GTEST_PROP(Lowering, EveryPlanPassesTheIndependentChecker, ()) {
  const TinyJob job = *any_job();
  const TinyCase tiny = tiny_case(job, *any_choice());
  const std::vector<PlanProblem> problems = check_plan(tiny.plan, tiny.lowered());
  for (const PlanProblem& problem : problems) RC_LOG() << problem.law << ": " << problem.where << "\n";
  RC_ASSERT(problems.empty());
}

// The quick forecast and the program come from one schedule; equal to the byte, with and without the allocator's rounding.
RC_GTEST_PROP(Lowering, QuickBytesEqualTheCountOfTheProgram, ()) {
  const TinyJob job = *any_job();
  const TinyCase tiny = tiny_case(job, *any_choice());
  const Lowered lowered = tiny.lowered();
  const ScheduleInput input = schedule_input(tiny.plan, lowered.units, lowered.places);
  for (const std::int64_t rounding : {1, 512}) {
    QuickForecast quick(*tiny.graph, tiny.segments, {.reduce = job.precision.reduce, .rounding_bytes = rounding});
    for (const LoweredProgram& phase : lowered.phases) {
      const MemoryCount count = count_memory(phase.program, rounding);
      const QuickFigures figures = quick.figures(input, phase.program.phase);
      RC_ASSERT(figures.peak_bytes == count.peak_bytes);
      RC_ASSERT(figures.end_bytes == count.end_bytes);
    }
  }
}

// Asked twice, and after other plans: scratch that is kept between calls changes nothing.
RC_GTEST_PROP(Lowering, QuickForecastHasNoMemory, ()) {
  TinyJob job = *any_job();
  KnobChoice first = *any_choice();
  KnobChoice second = *any_choice();
  second.micro_batch = first.micro_batch;
  const TinyCase a = tiny_case(job, first);
  TinyCase b = a;
  apply(second, b.segments, b.plan);
  b.plan.mesh = second.mesh;
  const Lowered lowered_a = a.lowered(), lowered_b = b.lowered();
  const ScheduleInput input_a = schedule_input(a.plan, lowered_a.units, lowered_a.places);
  const ScheduleInput input_b = schedule_input(b.plan, lowered_b.units, lowered_b.places);
  const WorkTimes times{
      .kernel_nanoseconds = [](const KernelWork& w) { return 100 + w.flops / 7 + w.read_bytes; },
      .collective_nanoseconds = [](const CollectiveWork& w, std::int32_t, std::int32_t) { return 1000 + w.bytes; }};
  QuickForecast fresh(*a.graph, a.segments, {.reduce = job.precision.reduce}, times);
  QuickForecast used(*a.graph, a.segments, {.reduce = job.precision.reduce}, times);
  (void)used.figures(input_b, Phase::Step1);
  (void)used.figures(input_b, Phase::Eval);
  const QuickFigures expected = fresh.figures(input_a, Phase::Step2);
  const QuickFigures found = used.figures(input_a, Phase::Step2);
  RC_ASSERT(found.peak_bytes == expected.peak_bytes);
  RC_ASSERT(found.nanoseconds == expected.nanoseconds);
}

// Categories at the peak add up to it; the peak is no less than what is resident.
RC_GTEST_PROP(MemoryCount, CategoriesAddUpToThePeak, ()) {
  const TinyJob job = *any_job();
  const Lowered lowered = tiny_case(job, *any_choice()).lowered();
  for (const LoweredProgram& phase : lowered.phases) {
    for (const std::int64_t rounding : {1, 512}) {
      const MemoryCount count = count_memory(phase.program, rounding);
      RC_ASSERT(count.at_peak.total() == count.peak_bytes);
      RC_ASSERT((rounding == 1) == (count.at_peak[MemoryCategory::Rounding] == 0));
      RC_ASSERT(count.end_bytes <= count.peak_bytes);
    }
  }
}

// Letters of docs/schedule_shardplan.md: between steps a rank holds, per group, U/N * o, per trainable group U/N * 2s more, one
// fp32 step counter and the constants. Step 1 starts without states and ends with them.
RC_GTEST_PROP(Lowering, BetweenStepsARankHoldsItsStretchesAndStates, ()) {
  const TinyJob job = *any_job();
  const Lowered lowered = tiny_case(job, *any_choice()).lowered();
  const std::int64_t o = element_bytes(job.precision.stored), s = element_bytes(job.precision.state);
  std::int64_t parameters = 0, states = 4, constants = 0;
  for (const UnitLayout& unit : lowered.units) {
    for (const FlatGroup& group : unit.groups) {
      parameters += group.stretch_numel * o;
      if (group.trainable) states += group.stretch_numel * 2 * s;
    }
  }
  for (const Storage& storage : lowered.graph->storages)
    if (storage.role == StorageRole::Buffer) constants += storage.bytes;
  RC_ASSERT(count_memory(phase_of(lowered, Phase::Load).program).end_bytes == parameters + constants);
  RC_ASSERT(count_memory(phase_of(lowered, Phase::Step1).program).end_bytes == parameters + constants + states);
  RC_ASSERT(count_memory(phase_of(lowered, Phase::Step2).program).end_bytes == parameters + constants + states);
  RC_ASSERT(count_memory(phase_of(lowered, Phase::Eval).program).end_bytes == parameters + constants + states);
  RC_ASSERT(count_memory(phase_of(lowered, Phase::Save).program).end_bytes == parameters + constants + states);
}

RC_GTEST_PROP(Lowering, MoreShardsNeverHoldMore, ()) {
  const TinyJob job = *any_job();
  KnobChoice choice = *any_choice();
  choice.mesh.shard = *rc::gen::inRange(1, 5);
  const TinyCase few = tiny_case(job, choice);
  choice.mesh.shard *= *rc::gen::inRange(2, 4);
  const TinyCase many = tiny_case(job, choice);
  RC_ASSERT(count_memory(phase_of(many.lowered(), Phase::Step2).program).end_bytes <=
            count_memory(phase_of(few.lowered(), Phase::Step2).program).end_bytes);
}

// ---- activations ----

// Activations and inputs alive when forward has ended, before anything runs backward.
std::int64_t bytes_after_forward(const Lowered& lowered) {
  const StepProgram& program = phase_of(lowered, Phase::Step2).program;
  std::int64_t bytes = 0;
  for (const Task& task : program.tasks) {
    if (task.kind == TaskKind::Recompute || task.kind == TaskKind::Backward) break;
    for (const Effect& effect : task.effects) {
      const Buffer& buffer = program.buffers[effect.buffer.at()];
      if (buffer.category == MemoryCategory::Activation || buffer.category == MemoryCategory::Inputs)
        bytes += effect.kind == EffectKind::Allocate ? buffer.bytes : -buffer.bytes;
    }
  }
  return bytes;
}

// Closed form against count: without recomputation exactly the values stay that backward reads.
RC_GTEST_PROP(Lowering, AfterForwardExactlyTheSavedStoragesAreThere, ()) {
  const TinyJob job = *any_job();
  KnobChoice choice = *any_choice();
  choice.recompute = {};
  const TinyCase tiny = tiny_case(job, choice);
  std::int64_t saved = 0;
  for (const SavedStorage& s : saved_storages(*tiny.graph)) {
    const Storage& storage = tiny.graph->storage(s.storage);
    if (storage.role == StorageRole::Activation || storage.role == StorageRole::Input) saved += storage.bytes;
  }
  RC_ASSERT(bytes_after_forward(tiny.lowered()) == saved);
}

RC_GTEST_PROP(Lowering, RecomputingMoreKeepsLess, ()) {
  TinyJob job = *any_job();
  job.train = {"all"};
  const KnobChoice choice = *any_choice();
  TinyCase tiny = tiny_case(job, choice);
  const auto after_forward = [&](const std::string& word) {
    tiny.plan.spans = expand_spans(*recompute_from_text(word), tiny.segments);
    return bytes_after_forward(tiny.lowered());
  };
  const std::int64_t none = after_forward("none"), full = after_forward("full");
  for (const std::string word : {"blocks:2", "halves:attention", "halves:mlp", "keep:linear", "keep:silu+rsqrt"}) {
    const std::int64_t some = after_forward(word);
    RC_ASSERT(full <= some);
    RC_ASSERT(some <= none);
  }
}

// A recomputed block keeps its input: with every block a span, layers - 1 + 1 activations of B * S * H stay between the blocks,
// besides what the segments outside keep, the tables and the ids.
TEST(Lowering, AFullyRecomputedBlockKeepsItsInputAlone) {
  const TinyJob job{.model = {.layers = 3}, .precision = {.compute = DType::F32}, .seq_len = 5};
  TinyCase tiny = tiny_case(job, {.micro_batch = 2});
  const std::int64_t activation = 2 * 5 * 16 * 4;
  tiny.plan.spans = expand_spans(*recompute_from_text("full"), tiny.segments);
  const std::int64_t of_three = bytes_after_forward(tiny.lowered());
  TinyJob more = job;
  more.model.layers = 7;
  TinyCase larger = tiny_case(more, {.micro_batch = 2});
  larger.plan.spans = expand_spans(*recompute_from_text("full"), larger.segments);
  EXPECT_EQ(bytes_after_forward(larger.lowered()) - of_three, 4 * activation);
}

// ---- births and deaths, told by reading the ops of the program once more ----

struct Position {
  std::int32_t task = -1, kernel = -1;
  auto operator<=>(const Position&) const = default;
};

// Every storage of an op is born at the op that makes it and dies at the last op that touches it, never later.
RC_GTEST_PROP(Lowering, StoragesDieAtTheirLastReader, ()) {
  const TinyJob job = *any_job();
  const TinyCase tiny = tiny_case(job, *any_choice());
  const Lowered lowered = tiny.lowered();
  const OpGraph& graph = *lowered.graph;
  for (const Phase kind : {Phase::Step2, Phase::Eval}) {
    const LoweredProgram& phase = phase_of(lowered, kind);
    std::vector<BufferId> current(graph.storages.size());
    std::vector<Position> died(phase.program.buffers.size()), touched(phase.program.buffers.size());
    for (std::size_t t = 0; t < phase.program.tasks.size(); ++t) {
      const Task& task = phase.program.tasks[t];
      const auto index = static_cast<std::int32_t>(t);
      std::size_t next = 0;
      const auto effects_before = [&](std::int32_t kernel, bool to_its_end) {
        for (; next < task.effects.size(); ++next) {
          const Effect& effect = task.effects[next];
          if (effect.kernel > kernel || (effect.kernel == kernel && effect.kind == EffectKind::Free && !to_its_end)) return;
          const BufferRole& role = phase.roles[effect.buffer.at()];
          if (role.use != BufferUse::GraphStorage) continue;
          if (effect.kind == EffectKind::Allocate) {
            current[role.storage.at()] = effect.buffer;
            if (task.kind == TaskKind::Input) touched[effect.buffer.at()] = {index, 0};
          } else {
            died[effect.buffer.at()] = {index, effect.kernel};
          }
        }
      };
      if (const auto* body = std::get_if<ComputeBody>(&phase.bodies[task.body.at()])) {
        for (const BodyOp& placed : body->ops) {
          if (placed.kernel < 0) continue;
          effects_before(placed.kernel, false);
          const Op& op = graph.op(placed.op);
          const auto touch = [&](ValueId v) {
            if (!v.is_set()) return;
            const BufferId buffer = current[graph.value(v).storage.at()];
            if (buffer.is_set()) touched[buffer.at()] = {index, placed.kernel};
          };
          for (const ValueId v : op.inputs) touch(v);
          if (placed.grad != GradWrite::InPlace)
            for (const ValueId v : op.outputs) touch(v);
        }
      }
      effects_before(INT32_MAX, true);
    }
    for (std::size_t b = 0; b < phase.program.buffers.size(); ++b) {
      const BufferRole& role = phase.roles[b];
      if (role.use != BufferUse::GraphStorage) continue;
      const bool is_loss = role.storage == graph.value(graph.loss).storage;
      if (!is_loss) {
        RC_ASSERT(died[b] == touched[b]);
        continue;
      }
      // The host reads the loss when the task has ended.
      const auto num_kernels =
          static_cast<std::int32_t>(phase.program.tasks[static_cast<std::size_t>(died[b].task)].kernels.size());
      RC_ASSERT(died[b].kernel + 1 == num_kernels);
    }
  }
}

// Nothing waits on a later task, so that running tasks one by one in program order is a lawful execution; and waiting is never
// needed inside a stream.
RC_GTEST_PROP(Lowering, ProgramOrderIsALawfulSynchronousOrder, ()) {
  const TinyJob job = *any_job();
  const Lowered lowered = tiny_case(job, *any_choice()).lowered();
  for (const LoweredProgram& phase : lowered.phases) {
    validate(phase.program);
    RC_ASSERT(phase.bodies.size() == phase.program.tasks.size());
    RC_ASSERT(phase.roles.size() == phase.program.buffers.size());
    for (std::size_t t = 0; t < phase.program.tasks.size(); ++t)
      for (const TaskId w : phase.program.tasks[t].waits_on) RC_ASSERT(w.at() < t);
  }
}

// A bigger micro-batch never lowers any phase's peak.
RC_GTEST_PROP(Lowering, ABiggerMicroBatchNeverNeedsLess, ()) {
  const TinyJob job = *any_job();
  KnobChoice choice = *any_choice();
  const Lowered small = tiny_case(job, choice).lowered();
  choice.micro_batch += *rc::gen::inRange(1, 3);
  const Lowered large = tiny_case(job, choice).lowered();
  for (std::size_t p = 0; p < small.phases.size(); ++p)
    RC_ASSERT(count_memory(small.phases[p].program).peak_bytes <= count_memory(large.phases[p].program).peak_bytes);
}

std::string message_of(const TinyCase& tiny) {
  try {
    (void)tiny.lowered();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Lowering, RefusesASpanThatHoldsTheFirstSegment) {
  TinyCase tiny = tiny_case({}, {});
  tiny.plan.spans = {{.first = SegmentId(0), .last = SegmentId(1)}};
  EXPECT_EQ(message_of(tiny),
            "a recomputed span holds the first segment, which makes the tables that all others read\n  at: plan#/spans\n"
            "  try: start the span at segment 1 or later");
}

TEST(Lowering, RefusesSpansThatOverlap) {
  TinyCase tiny = tiny_case({}, {});
  tiny.plan.spans = {{.first = SegmentId(1), .last = SegmentId(2)}, {.first = SegmentId(2), .last = SegmentId(3)}};
  EXPECT_EQ(message_of(tiny),
            "segment 2 is in two recomputed spans, or the spans are not in ascending order\n  at: plan#/spans\n"
            "  try: name each segment in one span, lowest first");
}

TEST(Lowering, RefusesASpanBeyondTheModel) {
  TinyCase tiny = tiny_case({}, {});
  tiny.plan.spans = {{.first = SegmentId(3), .last = SegmentId(40)}};
  EXPECT_EQ(message_of(tiny), "a recomputed span reaches from segment 3 to 40, the model has " +
                                  std::to_string(tiny.segments.all.size()) +
                                  "\n  at: plan#/spans\n  try: plan again for this model");
}

}  // namespace
}  // namespace shardplan
