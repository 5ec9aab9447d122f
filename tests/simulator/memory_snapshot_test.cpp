#include "simulator/memory_snapshot.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "core/error.h"
#include "simulator/allocator_replay.h"

namespace shardplan {
namespace {

using namespace std::chrono_literals;

constexpr std::int64_t kMib = std::int64_t{1} << 20;

// weights 30 MiB - 10 B | forward: + activation 12 MiB - 100 B | backward: + gradient 30 MiB, - activation | step: - gradient
StepProgram small_program() {
  StepProgram program{.phase = Phase::Step2, .streams = {StreamKind::Compute}};
  program.buffers = {
      {.bytes = 30 * kMib - 10, .category = MemoryCategory::ShardedParam, .pool = StreamId(0), .label = "unit blocks.0 stored"},
      {.bytes = 12 * kMib - 100, .category = MemoryCategory::Activation, .pool = StreamId(0), .label = "layers.0 mlp output"},
      {.bytes = 30 * kMib, .category = MemoryCategory::ShardedGrad, .pool = StreamId(0), .label = "unit blocks.0 gradient"},
  };
  program.resident = {BufferId(0)};
  program.tasks = {
      {.kind = TaskKind::Forward,
       .stream = StreamId(0),
       .effects = {{EffectKind::Allocate, BufferId(1)}},
       .label = "forward of layers.0"},
      {.kind = TaskKind::Backward,
       .stream = StreamId(0),
       .effects = {{EffectKind::Allocate, BufferId(2)}, {EffectKind::Free, BufferId(1)}},
       .label = "backward of layers.0"},
      {.kind = TaskKind::ZeroGrad, .stream = StreamId(0), .effects = {{EffectKind::Free, BufferId(2)}}},
  };
  validate(program);
  return program;
}

// What PyTorch's own tools read; empty when they are not installed.
std::map<std::string, std::string> read_by_pytorch(const std::string& snapshot) {
  const std::filesystem::path venv = std::filesystem::path(SHARDPLAN_SOURCE_DIR) / "build/venv";
  std::filesystem::path torch;
  std::error_code none;
  for (const auto& version : std::filesystem::directory_iterator(venv / "lib", none))
    if (std::filesystem::exists(version.path() / "site-packages/torch/cuda/_memory_viz.py"))
      torch = version.path() / "site-packages/torch";
  if (torch.empty() || !std::filesystem::exists(venv / "bin/python")) return {};
  const std::filesystem::path file =
      std::filesystem::temp_directory_path() / ("shardplan_snapshot." + std::to_string(::getpid()) + ".pickle");
  std::ofstream(file, std::ios::binary) << snapshot;
  const std::string command = (venv / "bin/python").string() + " " + SHARDPLAN_SOURCE_DIR +
                              "/tests/simulator/check_memory_snapshot.py " + file.string() + " " + torch.string() + " 2>&1";
  FILE* const pipe = ::popen(command.c_str(), "r");
  std::string output;
  char buffer[4096];
  for (std::size_t n = 0; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) output.append(buffer, n);
  const int status = ::pclose(pipe);
  std::filesystem::remove(file);
  EXPECT_EQ(status, 0) << output;
  std::map<std::string, std::string> said;
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) said[line.substr(0, line.find(' '))] = line.substr(line.find(' ') + 1);
  return said;
}

#define SKIP_WITHOUT_PYTORCH(said) \
  if ((said).empty()) GTEST_SKIP() << "no Python with PyTorch in build/venv: its snapshot tools are not asked"

TEST(MemorySnapshot, PytorchsToolsReadTheReplay) {
  const std::vector programs{small_program()};
  const AllocatorReplay replay = replay_allocator(programs, {});
  auto said = read_by_pytorch(memory_snapshot(programs, {}));
  SKIP_WITHOUT_PYTORCH(said);
  EXPECT_EQ(said["peak_requested"], std::to_string(replay.peaks.requested.bytes));
  EXPECT_EQ(said["peak_reserved"], std::to_string(replay.peaks.reserved.bytes));
  EXPECT_EQ(said["reserved_at_end"], std::to_string(replay.stats.reserved.current_bytes));
  EXPECT_EQ(said["segments_at_end"], std::to_string(replay.stats.reserved.current_bytes));
  EXPECT_EQ(said["allocated_at_end"], std::to_string(replay.stats.allocated.current_bytes));
  EXPECT_EQ(said["requested_at_end"], std::to_string(replay.stats.requested.current_bytes));
  EXPECT_EQ(said["flame_bytes"], said["segments_at_end"]);
  EXPECT_EQ(said["summary"], "total_reserved: 72.0MiB");
  EXPECT_EQ(said["peak_frames"], "Sharded Grad:2:unit blocks.0 gradient | step2:1:backward of layers.0");
  EXPECT_EQ(said["categories"], "Activation, Sharded Grad, Sharded Param, unknown");
  EXPECT_EQ(said["expandable_segments"], "False");
}

TEST(MemorySnapshot, ExpandableSegmentsAndRunningOutAreEventsToo) {
  const std::vector programs{small_program()};
  const CachingAllocatorOptions options{.expandable_segments = true, .device_bytes = 75 * kMib};
  const AllocatorReplay replay = replay_allocator(programs, options);
  ASSERT_TRUE(replay.failure.has_value()) << "60 MiB are mapped for 42; 72 need 80";
  auto said = read_by_pytorch(memory_snapshot(programs, options));
  SKIP_WITHOUT_PYTORCH(said);
  EXPECT_EQ(said["peak_requested"], std::to_string(42 * kMib - 110));
  EXPECT_EQ(said["reserved_at_end"], std::to_string(60 * kMib));
  EXPECT_EQ(said["segments_at_end"], std::to_string(60 * kMib));
  EXPECT_EQ(said["expandable_segments"], "True");
}

// Two phases of 10 us each; tasks start at 1, 4 and 6 us of theirs. Resident buffers come at the start of the phase.
TEST(MemorySnapshot, TimesRunOnFromPhaseToPhase) {
  const std::vector programs{small_program(), small_program()};
  Timeline timeline{.duration = 10us};
  for (const std::chrono::nanoseconds start : {1us, 4us, 6us}) timeline.tasks.push_back({.start = start});
  auto said = read_by_pytorch(memory_snapshot(programs, {}, std::vector{timeline, timeline}));
  SKIP_WITHOUT_PYTORCH(said);
  EXPECT_EQ(said["times"], "0, 1, 4, 6, 11, 14, 16");
  EXPECT_THROW(static_cast<void>(memory_snapshot(programs, {}, std::vector{timeline})), CheckFailure);
}

// More events than one batch of a list (1000) and more texts than one byte numbers (256).
TEST(MemorySnapshot, LongTracesArriveWhole) {
  StepProgram program{.phase = Phase::Step2, .streams = {StreamKind::Compute}};
  std::int64_t level = 0;
  for (int i = 0; i < 700; ++i) {
    const std::int64_t bytes = 1000 + 3000 * i;
    program.buffers.push_back({.bytes = bytes, .pool = StreamId(0), .label = "buffer " + std::to_string(i)});
    level += bytes;
    program.tasks.push_back(
        {.stream = StreamId(0), .effects = {{EffectKind::Allocate, BufferId(i)}}, .label = "task " + std::to_string(i)});
  }
  for (int i = 0; i < 700; ++i)
    program.tasks.push_back(
        {.stream = StreamId(0), .effects = {{EffectKind::Free, BufferId(i)}}, .label = "free " + std::to_string(i)});
  auto said = read_by_pytorch(memory_snapshot(std::vector{program}, {}));
  SKIP_WITHOUT_PYTORCH(said);
  EXPECT_EQ(said["peak_requested"], std::to_string(level));
  EXPECT_EQ(said["peak_frames"], "Temp:699:buffer 699 | step2:699:task 699");
  EXPECT_EQ(said["allocated_at_end"], "0");
}

TEST(MemorySnapshot, TheSameProgramGivesTheSameBytes) {
  const std::vector programs{small_program(), small_program()};
  const std::string snapshot = memory_snapshot(programs, {});
  EXPECT_EQ(snapshot, memory_snapshot(programs, {}));
  EXPECT_NE(snapshot.find("backward of layers.0"), std::string::npos);
  EXPECT_NE(snapshot, memory_snapshot(std::vector{small_program()}, {}));
}

}  // namespace
}  // namespace shardplan
