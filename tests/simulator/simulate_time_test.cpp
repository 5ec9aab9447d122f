// When tasks start and end, and what communication costs.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "simulator/cost_model.h"
#include "simulator/simulate.h"
#include "tests/core/random_program.h"
#include "tests/simulator/hand_program.h"

namespace shardplan {
namespace {

using std::chrono::nanoseconds;

std::pair<std::int64_t, std::int64_t> span_of(const Timeline& timeline, TaskId task) {
  return {timeline.tasks[task.at()].start.count(), timeline.tasks[task.at()].end.count()};
}
using Span = std::pair<std::int64_t, std::int64_t>;

nanoseconds sum_of_tasks(const StepProgram& program, const HardwareSpec& hardware, std::int32_t ranks_per_node) {
  nanoseconds sum{0};
  for (const Task& task : program.tasks) sum += task_time(task, program.mesh, hardware, ranks_per_node);
  return sum;
}

TEST(SimulateTime, AnEmptyProgramTakesNoTime) { EXPECT_EQ(simulate(empty_program(), round_machine()).duration.count(), 0); }

// compute |--100--|--50--|
// gather  |---120---|
TEST(SimulateTime, StreamsOverlapAndAreInOrder) {
  StepProgram program = empty_program();
  const TaskId first = compute(program, 100);
  const TaskId other = gather(program, 120);
  const TaskId second = compute(program, 50);
  const Timeline timeline = simulate(program, round_machine());
  EXPECT_EQ(span_of(timeline, first), (Span{0, 100}));
  EXPECT_EQ(span_of(timeline, other), (Span{0, 120}));
  EXPECT_EQ(span_of(timeline, second), (Span{100, 150}));
  EXPECT_EQ(timeline.duration.count(), 150);
}

// compute            |--100--|
// gather  |---120---|
TEST(SimulateTime, AWaitOrdersStreams) {
  StepProgram program = empty_program();
  const TaskId first = gather(program, 120);
  const TaskId second = compute(program, 100, {first});
  const Timeline timeline = simulate(program, round_machine());
  EXPECT_EQ(span_of(timeline, second), (Span{120, 220}));
}

// Prefetch: the second gather runs behind the first computation. Without it: 120 + 100 + 120 + 100.
TEST(SimulateTime, PrefetchHidesTheSecondGatherBehindTheFirstUnit) {
  StepProgram program = empty_program();
  const TaskId gather_0 = gather(program, 120);
  const TaskId gather_1 = gather(program, 80);
  compute(program, 100, {gather_0});
  compute(program, 100, {gather_1});
  const Timeline timeline = simulate(program, round_machine());
  EXPECT_EQ(timeline.duration.count(), 120 + 100 + 100);
  ASSERT_EQ(timeline.collectives.size(), 1U);
  EXPECT_EQ(timeline.collectives[0].calls, 2);
  EXPECT_EQ(timeline.collectives[0].bytes_per_rank, 2 * 120 + 2 * 80);
  EXPECT_EQ(timeline.collectives[0].busy.count(), 120 + 80);
  EXPECT_EQ(timeline.collectives[0].exposed.count(), 120);
}

// Two collectives of one link at once: each takes latency + 2 * transfer.
TEST(SimulateTime, CollectivesOfOneLinkShareItAndLatencyIsNotShared) {
  HardwareSpec machine = round_machine();
  machine.intra_node.latency_seconds = 30e-9;  // one step over two ranks
  StepProgram program = empty_program();
  const TaskId a = gather(program, 100, {}, 1);
  const TaskId b = gather(program, 100, {}, 2);
  const Timeline timeline = simulate(program, machine);
  EXPECT_EQ(span_of(timeline, a), (Span{0, 30 + 2 * 100}));
  EXPECT_EQ(span_of(timeline, b), (Span{0, 30 + 2 * 100}));
}

// The replicate axis has one rank in each node: the network link, at half the rate of the links inside.
TEST(SimulateTime, CollectivesOfDifferentLinksDoNotShare) {
  StepProgram program = empty_program();
  const TaskId inside = gather(program, 100, {}, 1, 0);
  const TaskId across = gather(program, 100, {}, 2, 1);
  const Timeline timeline = simulate(program, round_machine());
  EXPECT_EQ(span_of(timeline, inside), (Span{0, 100}));
  EXPECT_EQ(span_of(timeline, across), (Span{0, 200}));
}

// Gather: cast, then communicate. ReduceScatter: communicate, then copy.
TEST(SimulateTime, AGatherCastsBeforeAndAReductionCopiesAfterItsCollective) {
  StepProgram program = empty_program();
  const TaskId in = gather(program, 100);
  program.tasks[in.at()].kernels = {kernel(10)};
  const TaskId use = compute(program, 40, {in});
  add(program, {.kind = TaskKind::ReduceScatter,
                .stream = StreamId(2),
                .waits_on = {use},
                .kernels = {kernel(20)},
                .collective = CollectiveWork{.kind = CollectiveKind::ReduceScatter, .axis = AxisId(0), .bytes = 60}});
  const Timeline timeline = simulate(program, round_machine());
  EXPECT_EQ(timeline.duration.count(), 10 + 100 + 40 + 30 + 20);
  // The cast of the gather's stream and the copy of the reduction's are no communication.
  ASSERT_EQ(timeline.collectives.size(), 2U);
  EXPECT_EQ(timeline.collectives[0].busy.count(), 100);
  EXPECT_EQ(timeline.collectives[1].kind, CollectiveKind::ReduceScatter);
  EXPECT_EQ(timeline.collectives[1].busy.count(), 30);
}

// A collective on the compute stream (a gradient norm) keeps that stream from computing: all of it is exposed.
TEST(SimulateTime, ACollectiveOfTheComputeStreamIsExposed) {
  StepProgram program = empty_program();
  compute(program, 100);
  add(program, {.kind = TaskKind::GradNorm,
                .stream = StreamId(0),
                .kernels = {kernel(10)},
                .collective = CollectiveWork{.kind = CollectiveKind::AllReduce, .axis = AxisId(0), .bytes = 50}});
  const Timeline timeline = simulate(program, round_machine());
  EXPECT_EQ(timeline.collectives[0].busy.count(), 50);  // 2 * (p-1)/p * 50 over two ranks
  EXPECT_EQ(timeline.collectives[0].exposed.count(), 50);
}

// Two collectives exposed at once count once, for the first: the compute stream waited for 200 ns, not for 400.
TEST(SimulateTime, AnExposedInstantIsCountedOnce) {
  StepProgram program = empty_program();
  const TaskId a = gather(program, 100, {}, 1);
  const TaskId b = gather(program, 100, {}, 2);
  program.tasks[b.at()].collective->kind = CollectiveKind::ReduceScatter;
  compute(program, 10, {a, b});
  const Timeline timeline = simulate(program, round_machine());
  ASSERT_EQ(timeline.collectives.size(), 2U);
  EXPECT_EQ(timeline.collectives[0].exposed.count(), 200);
  EXPECT_EQ(timeline.collectives[1].exposed.count(), 0);
}

TEST(SimulateTime, TotalsStandByKindThenAxis) {
  StepProgram program = empty_program();
  gather(program, 10, {}, 1, 1);
  gather(program, 10, {}, 1, 0);
  const TaskId last = gather(program, 10, {}, 1, 1);
  program.tasks[last.at()].collective->kind = CollectiveKind::AllReduce;
  const Timeline timeline = simulate(program, round_machine());
  ASSERT_EQ(timeline.collectives.size(), 3U);
  EXPECT_EQ(timeline.collectives[0].axis, "shard");
  EXPECT_EQ(timeline.collectives[1].axis, "replicate");
  EXPECT_EQ(timeline.collectives[2].kind, CollectiveKind::AllReduce);
}

RC_GTEST_PROP(SimulateTime, SynchronousDurationIsTheSumOfTheTasks, ()) {
  const StepProgram program = *random_program();
  const Timeline timeline = simulate(program, round_machine(), {.synchronous = true});
  RC_ASSERT(timeline.duration == sum_of_tasks(program, round_machine(), 8));
  nanoseconds before{0};
  for (std::size_t i = 0; i < program.tasks.size(); ++i) {
    RC_ASSERT(timeline.tasks[i].start == before);
    RC_ASSERT(timeline.tasks[i].end - timeline.tasks[i].start == task_time(program.tasks[i], program.mesh, round_machine(), 8));
    before = timeline.tasks[i].end;
  }
  for (const CollectiveTotal& total : timeline.collectives) RC_ASSERT(total.exposed == total.busy);
}

RC_GTEST_PROP(SimulateTime, ATaskStartsTheInstantTheLastOfWhatItNeedsEnds, ()) {
  const StepProgram program = *random_program();
  const Timeline timeline = simulate(program, round_machine());
  std::vector<nanoseconds> stream_end(program.streams.size());
  for (std::size_t i = 0; i < program.tasks.size(); ++i) {
    const Task& task = program.tasks[i];
    nanoseconds earliest = stream_end[task.stream.at()];
    for (const TaskId awaited : task.waits_on) earliest = std::max(earliest, timeline.tasks[awaited.at()].end);
    RC_ASSERT(timeline.tasks[i].start == earliest);
    const nanoseconds alone = task_time(task, program.mesh, round_machine(), 8);
    const nanoseconds length = timeline.tasks[i].end - timeline.tasks[i].start;
    RC_ASSERT(length >= alone);
    if (!task.collective) RC_ASSERT(length == alone);
    stream_end[task.stream.at()] = timeline.tasks[i].end;
  }
}

// Links that are shared are never idle, so overlap can only gain. Each change of a rate may round one nanosecond up.
RC_GTEST_PROP(SimulateTime, OverlapIsNeverSlowerThanOneByOne, ()) {
  const StepProgram program = *random_program();
  const Timeline timeline = simulate(program, round_machine());
  RC_ASSERT(timeline.duration <= sum_of_tasks(program, round_machine(), 8) + nanoseconds(2 * program.tasks.size()));
}

RC_GTEST_PROP(SimulateTime, ExposedTimeIsPartOfTheTimeWithoutKernelsOnTheComputeStream, ()) {
  const StepProgram program = *random_program();
  const Timeline timeline = simulate(program, round_machine());
  nanoseconds kernels{0}, exposed{0};
  for (const Task& task : program.tasks) {
    if (program.streams[task.stream.at()] != StreamKind::Compute) continue;
    for (const KernelWork& work : task.kernels) kernels += kernel_time(work, round_machine());
  }
  for (const CollectiveTotal& total : timeline.collectives) {
    exposed += total.exposed;
    RC_ASSERT(total.exposed <= total.busy);
  }
  RC_ASSERT(exposed + kernels <= timeline.duration);
}

RC_GTEST_PROP(SimulateTime, SameInputSameTimeline, ()) {
  const StepProgram program = *random_program();
  RC_ASSERT(simulate(program, round_machine()) == simulate(program, round_machine()));
}

}  // namespace
}  // namespace shardplan
