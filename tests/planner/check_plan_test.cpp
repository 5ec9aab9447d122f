// The checker notices every kind of damage: each test breaks one thing in a lawful program and reads the law it names.
#include "planner/lowering/check_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "planner/lowering/memory_count.h"
#include "tests/planner/tiny_plans.h"

namespace shardplan {
namespace {

constexpr std::size_t kStep2 = 2;

TinyCase two_by_two() {
  KnobChoice choice{.mesh = {.shard = 2, .replicate = 2}, .grad_accum = 2};
  choice.recompute = *recompute_from_text("full");
  return tiny_case({.model = {.tied = true}}, choice);
}

bool names(const std::vector<PlanProblem>& problems, const std::string& law) {
  return std::any_of(problems.begin(), problems.end(), [&](const PlanProblem& p) { return p.law == law; });
}

std::string listed(const std::vector<PlanProblem>& problems) {
  std::string text;
  for (const PlanProblem& p : problems) text += p.law + " | " + p.where + "\n";
  return text;
}

void expect_law(const std::string& law, const std::function<void(LoweredProgram&)>& damage) {
  const TinyCase tiny = two_by_two();
  Lowered lowered = tiny.lowered();
  ASSERT_EQ(listed(check_plan(tiny.plan, lowered)), "");
  damage(lowered.phases[kStep2]);
  const std::vector<PlanProblem> problems = check_plan(tiny.plan, lowered);
  EXPECT_TRUE(names(problems, law)) << "expected: " << law << "\nfound:\n" << listed(problems);
}

Task& first_task(LoweredProgram& phase, TaskKind kind) {
  return *std::find_if(phase.program.tasks.begin(), phase.program.tasks.end(), [&](const Task& t) { return t.kind == kind; });
}
Task& last_task(LoweredProgram& phase, TaskKind kind) {
  return *std::find_if(phase.program.tasks.rbegin(), phase.program.tasks.rend(), [&](const Task& t) { return t.kind == kind; });
}
ComputeBody& ops_of(LoweredProgram& phase, const Task& task) { return std::get<ComputeBody>(phase.bodies[task.body.at()]); }

TEST(CheckPlan, AReaderThatDoesNotWaitForItsGather) {
  expect_law("an op that reads a unit waits for its gather",
             [](LoweredProgram& phase) { first_task(phase, TaskKind::Forward).waits_on.clear(); });
}

TEST(CheckPlan, AUnitDroppedBeforeItsReader) {
  expect_law("a parameter is gathered when an op reads it", [](LoweredProgram& phase) {
    // The first Free does what it does before the first Forward instead of after it.
    Task& free = first_task(phase, TaskKind::Free);
    Task& forward = first_task(phase, TaskKind::Forward);
    forward.effects.insert(forward.effects.begin(), free.effects.begin(), free.effects.end());
    free.effects.clear();
  });
}

TEST(CheckPlan, AValueFreedBeforeItsLastReader) {
  expect_law("a value is alive when an op reads it", [](LoweredProgram& phase) {
    // The last value that backward frees dies one kernel too early.
    for (Task& task : phase.program.tasks) {
      if (task.kind != TaskKind::Backward) continue;
      for (std::size_t e = 1; e < task.effects.size(); ++e) {
        Effect& effect = task.effects[e];
        if (effect.kind != EffectKind::Free || effect.kernel == 0 || phase.roles[effect.buffer.at()].use != BufferUse::GraphStorage)
          continue;
        const bool born_here = std::any_of(task.effects.begin(), task.effects.end(), [&](const Effect& other) {
          return other.kind == EffectKind::Allocate && other.buffer == effect.buffer;
        });
        if (born_here) continue;
        Effect early = effect;
        early.kernel = 0;
        task.effects.erase(task.effects.begin() + static_cast<std::ptrdiff_t>(e));
        task.effects.insert(task.effects.begin(), early);
        return;
      }
    }
    FAIL() << "no such effect";
  });
}

TEST(CheckPlan, AnOpThatDoesNotRun) {
  expect_law("every op of the graph runs once in a micro-step",
             [](LoweredProgram& phase) { ops_of(phase, last_task(phase, TaskKind::Backward)).ops.pop_back(); });
}

TEST(CheckPlan, AValueReadBeforeItIsMade) {
  expect_law("a value is made before an op reads it", [](LoweredProgram& phase) {
    std::vector<BodyOp>& ops = ops_of(phase, first_task(phase, TaskKind::Recompute)).ops;
    const auto kernel = std::find_if(ops.begin(), ops.end(), [](const BodyOp& op) { return op.kernel == 0; });
    ops.erase(kernel);
  });
}

TEST(CheckPlan, ASecondContributionThatOverwritesTheFirst) {
  expect_law("the first contribution to a slice is written, further ones are added", [](LoweredProgram& phase) {
    for (Task& task : phase.program.tasks) {
      if (task.kind != TaskKind::Backward) continue;
      for (BodyOp& op : ops_of(phase, task).ops) {
        if (op.grad != GradWrite::Add) continue;
        op.grad = GradWrite::Copy;
        return;
      }
    }
    FAIL() << "a tied embedding has two contributions";
  });
}

TEST(CheckPlan, AReductionThatDoesNotWait) {
  expect_law("a reduction waits for the backward that completed the unit",
             [](LoweredProgram& phase) { first_task(phase, TaskKind::ReduceScatter).waits_on.clear(); });
}

TEST(CheckPlan, AReductionThatOverwritesEarlierMicroSteps) {
  expect_law("gradients of earlier micro-steps are added to, not overwritten", [](LoweredProgram& phase) {
    std::get<UnitBody>(phase.bodies[last_task(phase, TaskKind::AllReduce).body.at()]).accumulate = false;
  });
}

TEST(CheckPlan, AReductionDoneTwice) {
  expect_law("every gradient is reduced exactly once", [](LoweredProgram& phase) {
    Task& all_reduce = first_task(phase, TaskKind::AllReduce);
    all_reduce.kind = TaskKind::ReduceScatter;
  });
}

TEST(CheckPlan, ASumOverTheShardAxisThatIsMissing) {
  expect_law("gradients are summed over the shard axis when it has ranks",
             [](LoweredProgram& phase) { first_task(phase, TaskKind::ReduceScatter).collective.reset(); });
}

TEST(CheckPlan, ANormThatDoesNotWait) {
  expect_law("the norm waits for all reductions",
             [](LoweredProgram& phase) { first_task(phase, TaskKind::GradNorm).waits_on.clear(); });
}

TEST(CheckPlan, AGradientThatOutlivesTheStep) {
  expect_law("nothing but parameters, constants and states outlives a phase",
             [](LoweredProgram& phase) { last_task(phase, TaskKind::ZeroGrad).effects.pop_back(); });
}

TEST(CheckPlan, ABufferOfTheWrongSize) {
  expect_law("a buffer has the size of what it holds", [](LoweredProgram& phase) {
    for (std::size_t b = 0; b < phase.roles.size(); ++b) {
      if (phase.roles[b].use == BufferUse::FullGrad) {
        phase.program.buffers[b].bytes -= 4;
        return;
      }
    }
  });
}

TEST(CheckPlan, AUnitThatIsNotStepped) {
  expect_law("every unit that trains is stepped",
             [](LoweredProgram& phase) { last_task(phase, TaskKind::OptimizerStep).kind = TaskKind::Load; });
}

TEST(CheckPlan, AProgramThatIsNotWellFormed) {
  expect_law("the program is well formed", [](LoweredProgram& phase) { phase.program.tasks.front().waits_on.emplace_back(3); });
}

TEST(CheckPlan, ALimitBelowThePeakSaysByHowMuch) {
  const TinyCase tiny = two_by_two();
  const Lowered lowered = tiny.lowered();
  const std::int64_t peak = count_memory(lowered.phases[kStep2].program).peak_bytes;
  EXPECT_FALSE(names(check_plan(tiny.plan, lowered, peak), "the peak fits the limit"));
  const std::vector<PlanProblem> problems = check_plan(tiny.plan, lowered, peak - 1);
  ASSERT_TRUE(names(problems, "the peak fits the limit"));
  EXPECT_NE(problems.front().where.find("1 B too much"), std::string::npos) << problems.front().where;
}

TEST(CheckPlan, ABatchThatIsNotTheOneAskedFor) {
  TinyCase tiny = two_by_two();
  tiny.plan.workload.global_batch = 9;  // 1 sequence x 2 micro-steps x 4 ranks are 8
  EXPECT_EQ(listed(check_plan(tiny.plan, tiny.lowered())),
            "micro-batches of all ranks make the global batch | 8 sequences a step, asked for 9\n");
}

TEST(CheckPlan, NodesThatDoNotDivideTheRanks) {
  TinyCase tiny = two_by_two();
  tiny.plan.num_nodes = 3;
  EXPECT_EQ(listed(check_plan(tiny.plan, tiny.lowered())), "every node has the same number of ranks | 4 ranks on 3 nodes\n");
}

}  // namespace
}  // namespace shardplan
