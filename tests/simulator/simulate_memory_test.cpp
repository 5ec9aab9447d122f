// Memory over time, held against a count that knows nothing of the engine.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <set>

#include "simulator/simulate.h"
#include "tests/core/random_program.h"
#include "tests/simulator/hand_program.h"

namespace shardplan {
namespace {

using std::chrono::nanoseconds;

// The plain count: the set of live buffers, summed anew after every effect.
struct PlainCount {
  explicit PlainCount(const StepProgram& p) : program(p), alive(p.resident.begin(), p.resident.end()) {}

  [[nodiscard]] std::int64_t level(Place place) const {
    std::int64_t sum = 0;
    for (const BufferId id : alive) {
      if (program.buffers[id.at()].place == place) sum += program.buffers[id.at()].bytes;
    }
    return sum;
  }
  void apply(const Effect& effect) {
    if (effect.kind == EffectKind::Allocate) {
      alive.insert(effect.buffer);
    } else {
      alive.erase(effect.buffer);
    }
  }

  const StepProgram& program;
  std::set<BufferId> alive;
};

RC_GTEST_PROP(SimulateMemory, LevelsAndPeaksEqualAPlainCount, (bool synchronous)) {
  const StepProgram program = *random_program();
  const Timeline timeline = simulate(program, round_machine(), {.synchronous = synchronous});
  PlainCount count(program);
  RC_ASSERT(timeline.at_start.total() == count.level(Place::Device));
  std::int64_t peak = count.level(Place::Device), host_peak = count.level(Place::Host);
  TaskId peak_task;
  for (std::size_t i = 0; i < program.tasks.size(); ++i) {
    std::int64_t task_peak = count.level(Place::Device);
    for (const Effect& effect : program.tasks[i].effects) {
      count.apply(effect);
      task_peak = std::max(task_peak, count.level(Place::Device));
      host_peak = std::max(host_peak, count.level(Place::Host));
    }
    RC_ASSERT(timeline.tasks[i].peak_requested_bytes == task_peak);
    RC_ASSERT(timeline.tasks[i].after_requested_bytes == count.level(Place::Device));
    if (task_peak > peak) {
      peak = task_peak;
      peak_task = TaskId(static_cast<std::int64_t>(i));
    }
  }
  RC_ASSERT(timeline.peak_requested_bytes == peak);
  RC_ASSERT(timeline.peak_task == peak_task);
  RC_ASSERT(timeline.at_peak.total() == peak);
  RC_ASSERT(timeline.host_peak_bytes == host_peak);
}

RC_GTEST_PROP(SimulateMemory, ChangesAreOrderedByTimeAndSumToTheLevelsByCategory, (bool synchronous)) {
  const StepProgram program = *random_program();
  const Timeline timeline = simulate(program, round_machine(), {.synchronous = synchronous});
  CategoryBytes level = timeline.at_start;
  CategoryBytes highest = level;
  std::size_t next = 0;
  for (std::size_t i = 0; i < program.tasks.size(); ++i) {
    for (; next < timeline.memory.size() && timeline.memory[next].task.at() == i; ++next) {
      const MemoryChange& change = timeline.memory[next];
      if (next > 0) RC_ASSERT(timeline.memory[next - 1].at <= change.at);
      RC_ASSERT(change.at <= timeline.duration);
      if (synchronous) RC_ASSERT(timeline.tasks[i].start <= change.at && change.at <= timeline.tasks[i].end);
      if (change.place == Place::Device) level[change.category] += change.delta_bytes;
      if (level.total() > highest.total()) highest = level;
    }
    RC_ASSERT(level.total() == timeline.tasks[i].after_requested_bytes);
  }
  RC_ASSERT(next == timeline.memory.size());
  RC_ASSERT(highest == timeline.at_peak);
}

RC_GTEST_PROP(SimulateMemory, WithoutRecordOnlyTheRecordIsMissing, ()) {
  const StepProgram program = *random_program();
  Timeline recorded = simulate(program, round_machine());
  const Timeline bare = simulate(program, round_machine(), {.record_memory = false});
  RC_ASSERT(bare.memory.empty());
  recorded.memory.clear();
  RC_ASSERT(recorded == bare);
}

// kernels  |--10--|--20--|--30--|
// output          ^allocated before kernel 1
// scratch         ^-----^            freed after it
// input                        x     freed after the last
TEST(SimulateMemory, EffectsHappenBeforeAndAfterTheKernelTheyName) {
  StepProgram program = empty_program();
  const BufferId input = buffer(program, 100, MemoryCategory::Activation);
  const BufferId output = buffer(program, 10, MemoryCategory::Activation);
  const BufferId scratch = buffer(program, 5, MemoryCategory::Temp);
  program.resident = {input};
  const TaskId task = add(program, {.kind = TaskKind::Forward,
                                    .stream = StreamId(0),
                                    .effects = {allocate(output, 1), allocate(scratch, 1), release(scratch, 1), release(input, 3)},
                                    .kernels = {kernel(10), kernel(20), kernel(30)}});
  const Timeline timeline = simulate(program, round_machine());
  const std::vector<MemoryChange> expected = {
      {.at = nanoseconds(10), .category = MemoryCategory::Activation, .delta_bytes = 10, .task = task},
      {.at = nanoseconds(10), .category = MemoryCategory::Temp, .delta_bytes = 5, .task = task},
      {.at = nanoseconds(10 + 20), .category = MemoryCategory::Temp, .delta_bytes = -5, .task = task},
      {.at = nanoseconds(10 + 20 + 30), .category = MemoryCategory::Activation, .delta_bytes = -100, .task = task}};
  EXPECT_EQ(timeline.memory, expected);
  EXPECT_EQ(timeline.peak_requested_bytes, 100 + 10 + 5);
  EXPECT_EQ(timeline.at_peak[MemoryCategory::Temp], 5);
}

// gather          |----120----|      its buffer is asked for at 100, when the host issues it: after the first computation's
// allocation compute  |--100--|--50--|
TEST(SimulateMemory, OtherStreamsAllocateWhenTheHostIssuesThem) {
  StepProgram program = empty_program();
  const BufferId output = buffer(program, 10, MemoryCategory::Activation);
  const BufferId gathered = buffer(program, 20, MemoryCategory::UnshardedParam);
  const TaskId first = compute(program, 100);
  program.tasks[first.at()].effects = {allocate(output)};
  const TaskId next = gather(program, 120);
  program.tasks[next.at()].effects = {allocate(gathered)};
  compute(program, 50);
  const Timeline timeline = simulate(program, round_machine());
  EXPECT_EQ(timeline.tasks[next.at()].start.count(), 0);
  EXPECT_EQ(timeline.memory[1].at.count(), 100);
  // One by one, its own kernels count.
  const Timeline one_by_one = simulate(program, round_machine(), {.synchronous = true});
  EXPECT_EQ(one_by_one.tasks[next.at()].start.count(), 100);
  EXPECT_EQ(one_by_one.memory[1].at, one_by_one.tasks[next.at()].end);  // it has no kernel 0: the effect is after all kernels
}

// gather          |cast 10|----100----|             its buffer comes before the cast
// reduce-scatter                      |---30---|copy 20|   the shard comes before the copy, the full gradient goes after it
TEST(SimulateMemory, AGatherCastsBeforeAndAReductionCopiesAfterItsCollective) {
  StepProgram program = empty_program();
  const BufferId gathered = buffer(program, 200, MemoryCategory::UnshardedParam);
  const BufferId full = buffer(program, 60, MemoryCategory::UnshardedGrad);
  const BufferId shard = buffer(program, 30, MemoryCategory::ShardedGrad);
  program.resident = {full};
  const TaskId in = gather(program, 100);
  program.tasks[in.at()].kernels = {kernel(10)};
  program.tasks[in.at()].effects = {allocate(gathered)};
  const CollectiveWork reduce{.kind = CollectiveKind::ReduceScatter, .axis = AxisId(0), .bytes = 60};
  add(program, {.kind = TaskKind::ReduceScatter,
                .stream = StreamId(2),
                .effects = {allocate(shard), release(full)},
                .kernels = {kernel(20)},
                .collective = reduce});
  const Timeline timeline = simulate(program, round_machine(), {.synchronous = true});
  ASSERT_EQ(timeline.memory.size(), 3U);
  EXPECT_EQ(timeline.memory[0].at.count(), 0);
  EXPECT_EQ(timeline.memory[1].at.count(), 10 + 100 + 30);
  EXPECT_EQ(timeline.memory[2].at.count(), 10 + 100 + 30 + 20);
}

TEST(SimulateMemory, ResidentBuffersAloneMayBeThePeak) {
  StepProgram program = empty_program();
  const BufferId weight = buffer(program, 100, MemoryCategory::ShardedParam);
  const BufferId host = buffer(program, 7, MemoryCategory::OptState, Place::Host);
  program.resident = {weight, host};
  const TaskId task = compute(program, 1);
  program.tasks[task.at()].effects = {release(weight)};
  const Timeline timeline = simulate(program, round_machine());
  EXPECT_EQ(timeline.peak_requested_bytes, 100);
  EXPECT_FALSE(timeline.peak_task.is_set());
  EXPECT_EQ(timeline.at_peak[MemoryCategory::ShardedParam], 100);
  EXPECT_EQ(timeline.at_peak[MemoryCategory::OptState], 0);  // on the host
  EXPECT_EQ(timeline.host_peak_bytes, 7);
}

}  // namespace
}  // namespace shardplan
