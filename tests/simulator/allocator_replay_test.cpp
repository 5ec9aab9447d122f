#include "simulator/allocator_replay.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "core/error.h"

namespace shardplan {
namespace {

constexpr std::int64_t kMib = std::int64_t{1} << 20;
const StreamId kCompute(0);
const StreamId kGather(1);

// Programs by hand: buffers by bytes, tasks as lists of effects.
struct ProgramText {
  StepProgram program{.streams = {StreamKind::Compute, StreamKind::Gather}};

  BufferId buffer(const std::string& label, std::int64_t bytes, MemoryCategory category, StreamId pool = kCompute) {
    program.buffers.push_back({.bytes = bytes, .category = category, .pool = pool, .label = label});
    return BufferId(static_cast<std::int64_t>(program.buffers.size()) - 1);
  }
  void task(const std::string& label, const std::vector<BufferId>& born, const std::vector<BufferId>& dying) {
    Task task{.stream = kCompute, .label = label};
    for (const BufferId id : born) task.effects.push_back({EffectKind::Allocate, id});
    for (const BufferId id : dying) task.effects.push_back({EffectKind::Free, id});
    program.tasks.push_back(task);
  }
};

// weights 30 MiB resident | forward: + activation 12 | backward: + gradient 30, - activation | step: - gradient
//   allocated              42                          72 at its top, 60 after               30
//   reserved 30 -> 42 -> 72 and stays
TEST(AllocatorReplay, PeaksNameTheTaskThatReachedThem) {
  ProgramText text;
  const BufferId weights = text.buffer("weights", 30 * kMib, MemoryCategory::ShardedParam);
  const BufferId activation = text.buffer("activation", 12 * kMib - 100, MemoryCategory::Activation);
  const BufferId gradient = text.buffer("gradient", 30 * kMib, MemoryCategory::ShardedGrad);
  text.program.resident = {weights};
  text.task("forward", {activation}, {});
  text.task("backward", {gradient}, {activation});
  text.task("step", {}, {gradient});
  validate(text.program);

  const AllocatorReplay replay = replay_allocator(text.program, {});
  EXPECT_EQ(replay.peaks.requested, (AllocatorPeak{72 * kMib - 100, 0, TaskId(1)}));
  EXPECT_EQ(replay.peaks.allocated, (AllocatorPeak{72 * kMib, 0, TaskId(1)}));
  EXPECT_EQ(replay.peaks.active, replay.peaks.allocated);
  EXPECT_EQ(replay.peaks.reserved, (AllocatorPeak{72 * kMib, 0, TaskId(1)}));
  EXPECT_EQ(replay.by_program, std::vector{replay.peaks});
  CategoryBytes expected;
  expected[MemoryCategory::ShardedParam] = 30 * kMib;
  expected[MemoryCategory::Activation] = 12 * kMib - 100;
  expected[MemoryCategory::ShardedGrad] = 30 * kMib;
  expected[MemoryCategory::Rounding] = 100;
  EXPECT_EQ(replay.at_allocated_peak, expected);
  EXPECT_EQ(replay.at_allocated_peak.total(), replay.peaks.allocated.bytes);
  EXPECT_EQ(replay.stats.allocated.current_bytes, 30 * kMib);
  EXPECT_EQ(replay.failure, std::nullopt);
}

// The same 40 MiB buffer is gathered in the pool of another stream than the one before it was freed in: both pools hold 40.
TEST(AllocatorReplay, APoolIsOfOneStream) {
  ProgramText text;
  const BufferId first = text.buffer("unit 0", 40 * kMib, MemoryCategory::UnshardedParam, kGather);
  const BufferId second = text.buffer("unit 1", 40 * kMib, MemoryCategory::UnshardedParam, kCompute);
  text.task("unit 0", {first}, {first});
  text.task("unit 1", {second}, {second});
  const AllocatorReplay apart = replay_allocator(text.program, {});
  EXPECT_EQ(apart.peaks.allocated.bytes, 40 * kMib);
  EXPECT_EQ(apart.peaks.reserved.bytes, 80 * kMib);
  text.program.buffers[first.at()].pool = kCompute;
  EXPECT_EQ(replay_allocator(text.program, {}).peaks.reserved.bytes, 40 * kMib);
}

TEST(AllocatorReplay, HostBuffersAndEmptyOnesTakeNothing) {
  ProgramText text;
  const BufferId host = text.buffer("pinned", 40 * kMib, MemoryCategory::OptState);
  text.program.buffers[host.at()].place = Place::Host;
  const BufferId empty = text.buffer("empty", 0, MemoryCategory::Temp);
  text.task("offload", {host, empty}, {empty, host});
  EXPECT_EQ(replay_allocator(text.program, {}), (AllocatorReplay{.by_program = {AllocatorPeaks{}}}));
}

// load: weights 30, a piece of 12 that dies.  step1: weights resident, gradient 12 reuses the piece's segment, states 60 stay.
// step2: weights and states resident: nothing moves.
TEST(AllocatorReplay, ProgramsInSequenceShareOneAllocator) {
  std::vector<StepProgram> programs;
  ProgramText load{.program = {.phase = Phase::Load, .streams = {StreamKind::Compute}}};
  const BufferId loaded = load.buffer("weights", 30 * kMib, MemoryCategory::ShardedParam);
  const BufferId piece = load.buffer("piece", 12 * kMib, MemoryCategory::Temp);
  load.task("load", {loaded, piece}, {piece});
  programs.push_back(load.program);
  for (const Phase phase : {Phase::Step1, Phase::Step2}) {
    ProgramText step{.program = {.phase = phase, .streams = {StreamKind::Compute}}};
    const BufferId gradient = step.buffer("gradient", 12 * kMib, MemoryCategory::ShardedGrad);
    const BufferId weights = step.buffer("weights", 30 * kMib, MemoryCategory::ShardedParam);
    const BufferId states = step.buffer("states", 60 * kMib, MemoryCategory::OptState);
    step.program.resident = {weights};
    step.task("backward", {gradient}, {});
    if (phase == Phase::Step1) {
      step.task("optimizer", {states}, {gradient});
    } else {
      step.program.resident = {weights, states};
      step.task("optimizer", {}, {gradient});
    }
    programs.push_back(step.program);
  }
  for (const StepProgram& program : programs) validate(program);

  const AllocatorReplay replay = replay_allocator(programs, {});
  ASSERT_EQ(replay.by_program.size(), 3U);
  EXPECT_EQ(replay.by_program[0].allocated, (AllocatorPeak{42 * kMib, 0, TaskId(0)}));
  EXPECT_EQ(replay.by_program[1].allocated, (AllocatorPeak{102 * kMib, 1, TaskId(1)}));
  EXPECT_EQ(replay.by_program[2].allocated, (AllocatorPeak{102 * kMib, 2, TaskId(0)}));
  EXPECT_EQ(replay.peaks.allocated, replay.by_program[1].allocated) << "the first to reach it";
  EXPECT_EQ(replay.by_program[1].reserved, (AllocatorPeak{102 * kMib, 1, TaskId(1)}));
  EXPECT_EQ(replay.by_program[2].reserved, (AllocatorPeak{102 * kMib, 2, TaskId()})) << "all of it was there already";
}

TEST(AllocatorReplay, WhatTheNextProgramDoesNotKnowIsFreed) {
  ProgramText first;
  const BufferId left = first.buffer("left behind", 40 * kMib, MemoryCategory::Activation);
  first.task("make", {left}, {});
  ProgramText second;
  const BufferId more = second.buffer("more", 50 * kMib, MemoryCategory::Temp);
  second.task("more", {more}, {more});
  const std::vector programs{first.program, second.program};
  const AllocatorReplay replay = replay_allocator(programs, {});
  EXPECT_EQ(replay.peaks.allocated, (AllocatorPeak{50 * kMib, 1, TaskId(0)})) << "40 are gone";
  CategoryBytes only_more;
  only_more[MemoryCategory::Temp] = 50 * kMib;
  EXPECT_EQ(replay.at_allocated_peak, only_more);
  EXPECT_EQ(replay.stats.reserved.current_bytes, 90 * kMib);
}

// Two buffers of one label are handed on in their order: freeing the second of them frees the block of the second.
TEST(AllocatorReplay, EqualLabelsKeepTheirOrder) {
  ProgramText text;
  const BufferId one = text.buffer("same", 40 * kMib, MemoryCategory::OptState);
  const BufferId two = text.buffer("same", 40 * kMib, MemoryCategory::OptState);
  text.task("make", {one, two}, {});
  StepProgram second = text.program;
  second.resident = {one, two};
  second.tasks = {{.stream = kCompute, .effects = {{EffectKind::Free, two}}, .label = "drop"}};
  const TracedReplay traced = trace_allocator(std::vector{text.program, second}, {});
  std::vector<std::int64_t> born;
  for (const AllocatorEvent& event : traced.events)
    if (event.action == AllocatorAction::Alloc) born.push_back(event.address);
  ASSERT_EQ(born.size(), 2U);
  EXPECT_EQ(traced.events.back(), (AllocatorEvent{AllocatorAction::FreeCompleted, born[1], 40 * kMib, kCompute}));
  EXPECT_EQ(traced.causes.back(), (AllocationCause{1, TaskId(0), two}));
}

// Segment events have the cause of the allocation that needed them; every event has one.
TEST(AllocatorReplay, EveryEventHasItsCause) {
  ProgramText text;
  const BufferId weights = text.buffer("weights", 30 * kMib, MemoryCategory::ShardedParam);
  const BufferId piece = text.buffer("piece", 40 * kMib, MemoryCategory::Temp);
  text.program.resident = {weights};
  text.task("use", {piece}, {piece});
  const TracedReplay traced = trace_allocator(std::span(&text.program, 1), {});
  const AllocationCause start{0, TaskId(), weights};
  const AllocationCause use{0, TaskId(0), piece};
  using enum AllocatorAction;
  const std::vector<std::pair<AllocatorAction, AllocationCause>> expected = {
      {SegmentAlloc, start}, {Alloc, start}, {SegmentAlloc, use}, {Alloc, use}, {FreeRequested, use}, {FreeCompleted, use}};
  ASSERT_EQ(traced.events.size(), expected.size());
  ASSERT_EQ(traced.causes.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(traced.events[i].action, expected[i].first) << i;
    EXPECT_EQ(traced.causes[i], expected[i].second) << i;
  }
  EXPECT_EQ(traced.replay, replay_allocator(text.program, {})) << "tracing changes nothing";
}

TEST(AllocatorReplay, RunningOutNamesTaskAndBuffer) {
  ProgramText text;
  const BufferId weights = text.buffer("weights", 60 * kMib, MemoryCategory::ShardedParam);
  const BufferId logits = text.buffer("logits", 50 * kMib, MemoryCategory::Activation);
  text.program.resident = {weights};
  text.task("forward", {logits}, {logits});
  const AllocatorReplay fits = replay_allocator(text.program, {.device_bytes = 110 * kMib});
  EXPECT_EQ(fits.failure, std::nullopt);
  const AllocatorReplay fails = replay_allocator(text.program, {.device_bytes = 109 * kMib});
  ASSERT_TRUE(fails.failure.has_value());
  EXPECT_EQ(*fails.failure, (ReplayFailure{0, TaskId(0), logits, {50 * kMib, 50 * kMib, 60 * kMib}}));
  EXPECT_EQ(fails.peaks.allocated.bytes, 60 * kMib);
  const AllocatorReplay fails_at_once = replay_allocator(text.program, {.device_bytes = 59 * kMib});
  EXPECT_EQ(fails_at_once.failure->task, TaskId());
  EXPECT_EQ(fails_at_once.failure->buffer, weights);
}

TEST(AllocatorReplay, FreeingWhatIsNotAliveIsOurBug) {
  ProgramText text;
  const BufferId never = text.buffer("never", 512, MemoryCategory::Temp);
  text.task("free", {}, {never});
  EXPECT_THROW(static_cast<void>(replay_allocator(text.program, {})), CheckFailure);
}

StepProgram random_program(std::uint32_t seed) {
  std::mt19937 random(seed);
  ProgramText text;
  std::vector<BufferId> alive;
  for (int t = 0; t < 40; ++t) {
    std::vector<BufferId> born;
    std::vector<BufferId> dying;
    for (int i = 0; i < 6; ++i) {
      const std::int64_t bytes = static_cast<std::int64_t>(random() % (1U << (4 + random() % 22)));
      born.push_back(text.buffer("b" + std::to_string(text.program.buffers.size()), bytes,
                                 static_cast<MemoryCategory>(random() % 12), StreamId(static_cast<std::int64_t>(random() % 2))));
      alive.push_back(born.back());
    }
    while (alive.size() > 30) {
      const std::size_t which = random() % alive.size();
      dying.push_back(alive[which]);
      alive.erase(alive.begin() + static_cast<std::ptrdiff_t>(which));
    }
    text.task("t" + std::to_string(t), born, dying);
  }
  return text.program;
}

// A program cut in two after any task, the second part knowing what is alive by its labels, is the same program.
TEST(AllocatorReplay, CuttingAProgramInTwoChangesNothing) {
  for (std::uint32_t seed = 0; seed < 10; ++seed) {
    const StepProgram whole = random_program(seed);
    validate(whole);
    const AllocatorReplay expected = replay_allocator(whole, {});
    for (const std::size_t cut : {std::size_t{0}, std::size_t{7}, std::size_t{39}}) {
      std::vector<bool> is_alive(whole.buffers.size());
      StepProgram first = whole;
      first.tasks.resize(cut);
      for (const Task& task : first.tasks)
        for (const Effect& effect : task.effects) is_alive[effect.buffer.at()] = effect.kind == EffectKind::Allocate;
      StepProgram second = whole;
      second.tasks.erase(second.tasks.begin(), second.tasks.begin() + static_cast<std::ptrdiff_t>(cut));
      for (std::size_t i = 0; i < is_alive.size(); ++i)
        if (is_alive[i]) second.resident.emplace_back(static_cast<std::int64_t>(i));
      const std::vector programs{first, second};
      const AllocatorReplay replay = replay_allocator(programs, {});
      ASSERT_EQ(replay.stats, expected.stats) << "seed " << seed << " cut " << cut;
      ASSERT_EQ(replay.at_allocated_peak, expected.at_allocated_peak);
      ASSERT_EQ(replay.peaks.reserved.bytes, expected.peaks.reserved.bytes);
      const std::int64_t peak_task = expected.peaks.allocated.task.value;
      const std::int64_t offset = replay.peaks.allocated.program == 1 ? static_cast<std::int64_t>(cut) : 0;
      ASSERT_EQ(replay.peaks.allocated.task.value + offset, peak_task);
    }
  }
}

// Names of the pools do not matter, only which buffers share one.
TEST(AllocatorReplay, ExchangingTheStreamsChangesNoPeak) {
  for (std::uint32_t seed = 0; seed < 10; ++seed) {
    StepProgram program = random_program(seed);
    const AllocatorReplay before = replay_allocator(program, {});
    for (Buffer& buffer : program.buffers) buffer.pool = buffer.pool == kCompute ? kGather : kCompute;
    const AllocatorReplay after = replay_allocator(program, {});
    EXPECT_EQ(after.peaks, before.peaks);
    EXPECT_EQ(after.by_program, before.by_program);
  }
}

// The replay's requested peak is the plain count of what is alive, and rounding adds less than 512 B a buffer to an endless,
// growing segment (pieces of 512 B are split off there, so no block is larger than its rounded request).
TEST(AllocatorReplay, RequestedIsThePlainCount) {
  for (std::uint32_t seed = 0; seed < 10; ++seed) {
    const StepProgram program = random_program(seed);
    std::int64_t level = 0, peak = 0, rounded_level = 0, rounded_peak = 0;
    CategoryBytes alive;
    CategoryBytes at_peak;
    for (const Task& task : program.tasks) {
      for (const Effect& effect : task.effects) {
        const std::int64_t bytes = program.buffers[effect.buffer.at()].bytes;
        const std::int64_t rounded = (bytes + 511) / 512 * 512;
        const int sign = effect.kind == EffectKind::Allocate ? 1 : -1;
        level += sign * bytes;
        rounded_level += sign * rounded;
        alive[program.buffers[effect.buffer.at()].category] += sign * bytes;
        peak = std::max(peak, level);
        if (rounded_level <= rounded_peak) continue;
        rounded_peak = rounded_level;
        at_peak = alive;
        at_peak[MemoryCategory::Rounding] = rounded_level - level;
      }
    }
    const AllocatorReplay replay = replay_allocator(program, {.expandable_segments = true});
    EXPECT_EQ(replay.peaks.requested.bytes, peak);
    EXPECT_EQ(replay.peaks.allocated.bytes, rounded_peak);
    EXPECT_EQ(replay.at_allocated_peak, at_peak);
    EXPECT_GE(replay_allocator(program, {}).peaks.allocated.bytes, rounded_peak)
        << "fixed segments may charge up to 1 MiB more a block";
  }
}

}  // namespace
}  // namespace shardplan
