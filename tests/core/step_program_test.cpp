#include "core/step_program.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "core/error.h"
#include "tests/core/random_program.h"
#include "tests/core/thrown.h"

namespace shardplan {
namespace {

// One resident weight, one activation that lives from the forward task to the backward task.
StepProgram small_program() {
  StepProgram program;
  program.role = "every rank";
  program.mesh = {{.name = "shard", .degree = 2, .stride = 1}};
  program.streams = {StreamKind::Compute};
  program.buffers = {
      {.bytes = 8, .category = MemoryCategory::ShardedParam, .place = Place::Device, .pool = StreamId(0), .label = "weight"},
      {.bytes = 4, .category = MemoryCategory::Activation, .place = Place::Device, .pool = StreamId(0), .label = "output"}};
  program.resident = {BufferId(0)};
  program.tasks = {{.kind = TaskKind::Forward,
                    .stream = StreamId(0),
                    .effects = {{.kind = EffectKind::Allocate, .buffer = BufferId(1), .kernel = 0}},
                    .label = "forward"},
                   {.kind = TaskKind::Backward,
                    .stream = StreamId(0),
                    .waits_on = {TaskId(0)},
                    .effects = {{.kind = EffectKind::Free, .buffer = BufferId(1), .kernel = 0}},
                    .label = "backward"}};
  return program;
}

// The law that a change breaks.
template <class Change>
std::string broken_law(Change change) {
  StepProgram program = small_program();
  change(program);
  const std::string message = thrown<CheckFailure>([&] { validate(program); });
  return message.substr(0, message.find('\n'));
}

TEST(Validate, AcceptsWhatKeepsTheLaws) { EXPECT_NO_THROW(validate(small_program())); }

TEST(Validate, NamesTheBrokenLaw) {
  EXPECT_EQ(broken_law([](StepProgram& p) { p.mesh[0].degree = 0; }),
            "broken law: a mesh axis has a degree and a stride of at least 1");
  EXPECT_EQ(broken_law([](StepProgram& p) { p.buffers[1].bytes = -1; }), "broken law: a buffer has a size that is not negative");
  EXPECT_EQ(broken_law([](StepProgram& p) { p.buffers[1].pool = StreamId(1); }),
            "broken law: a buffer's pool is a stream of the program");
  EXPECT_EQ(broken_law([](StepProgram& p) { p.resident = {BufferId(2)}; }),
            "broken law: a resident buffer is a buffer of the program");
  EXPECT_EQ(broken_law([](StepProgram& p) {
              p.resident = {BufferId(0), BufferId(0)};
            }),
            "broken law: resident buffers stand in ascending order, each once");
  EXPECT_EQ(broken_law([](StepProgram& p) { p.tasks[0].stream = StreamId(); }),
            "broken law: a task runs on a stream of the program: forward");
  EXPECT_EQ(broken_law([](StepProgram& p) { p.tasks[0].waits_on = {TaskId(0)}; }),
            "broken law: a task waits on earlier tasks only: forward");
  EXPECT_EQ(broken_law([](StepProgram& p) {
              p.tasks[1].waits_on = {TaskId(0), TaskId(0)};
            }),
            "broken law: awaited tasks stand in ascending order, each once: backward");
  EXPECT_EQ(broken_law([](StepProgram& p) { p.tasks[0].kernels = {{.flops = -1}}; }), "broken law: work is not negative: forward");
  EXPECT_EQ(broken_law([](StepProgram& p) { p.tasks[0].collective = CollectiveWork{.axis = AxisId(1)}; }),
            "broken law: a collective runs on an axis of the mesh: forward");
  EXPECT_EQ(broken_law([](StepProgram& p) { p.tasks[0].collective = CollectiveWork{.axis = AxisId(0), .bytes = -1}; }),
            "broken law: a collective moves a number of bytes that is not negative: forward");
  EXPECT_EQ(broken_law([](StepProgram& p) { p.tasks[0].effects[0].buffer = BufferId(7); }),
            "broken law: an effect names a buffer of the program: forward");
  EXPECT_EQ(broken_law([](StepProgram& p) { p.tasks[0].effects[0].kernel = -1; }),
            "broken law: effects of a task are ordered by kernel: forward");
  EXPECT_EQ(broken_law([](StepProgram& p) { p.tasks[1].effects[0].kind = EffectKind::Allocate; }),
            "broken law: a buffer is allocated once: output in backward");
  EXPECT_EQ(broken_law([](StepProgram& p) { p.tasks[0].effects[0].buffer = BufferId(0); }),
            "broken law: a buffer is allocated once: weight in forward");
  EXPECT_EQ(broken_law([](StepProgram& p) { p.tasks[0].effects.clear(); }),
            "broken law: a buffer is freed once, while it is alive: output in backward");
  EXPECT_EQ(broken_law([](StepProgram& p) { p.tasks[1].effects.push_back(p.tasks[1].effects[0]); }),
            "broken law: a buffer is freed once, while it is alive: output in backward");
}

RC_GTEST_PROP(Validate, AcceptsEveryProgramThatIsBuiltByTheLaws, ()) { validate(*random_program()); }

}  // namespace
}  // namespace shardplan
