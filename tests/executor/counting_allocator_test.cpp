// The allocator counts exactly what is asked for, by category, from any thread, and gives memory back.
#include "executor/counting_allocator.h"

#include <c10/core/Allocator.h>
#include <gtest/gtest.h>

#include <thread>

namespace shardplan {
namespace {

class CountingAllocator : public testing::Test {
 protected:
  static void SetUpTestSuite() { install_counting_allocator(); }
  void SetUp() override {
    memory.restart_peak();
    before = memory.read();
  }
  [[nodiscard]] std::int64_t above(std::int64_t level) const { return level - before.current_bytes; }
  static c10::DataPtr allocate(std::size_t bytes) { return c10::GetAllocator(c10::kCPU)->allocate(bytes); }
  CountingMeter memory;
  MemoryReading before;
};

TEST_F(CountingAllocator, LevelAndPeakAreThoseOfTheRequests) {
  {
    const c10::DataPtr a = allocate(1000);
    {
      const c10::DataPtr b = allocate(77);
      EXPECT_EQ(above(memory.read().current_bytes), 1077);
    }
    EXPECT_EQ(above(memory.read().current_bytes), 1000);
    EXPECT_EQ(above(memory.read().peak_bytes), 1077);
    memory.restart_peak();
    EXPECT_EQ(above(memory.read().peak_bytes), 1000);
  }
  EXPECT_EQ(above(memory.read().current_bytes), 0);
}

TEST_F(CountingAllocator, NothingCostsNothing) {
  const c10::DataPtr none = allocate(0);
  EXPECT_EQ(none.get(), nullptr);
  EXPECT_EQ(above(memory.read().peak_bytes), 0);
}

TEST_F(CountingAllocator, RawPointersAreAlignedAndGoBackThroughTheDeleter) {
  c10::Allocator* allocator = c10::GetAllocator(c10::kCPU);
  void* raw = allocator->raw_allocate(100);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(raw) % 64, 0U);
  EXPECT_EQ(above(memory.read().current_bytes), 100);
  allocator->raw_deallocate(raw);
  EXPECT_EQ(above(memory.read().current_bytes), 0);
}

TEST_F(CountingAllocator, ResultsGoToTheirCategoriesAndTheRestIsTemp) {
  const std::vector<ExpectedResult> results{{640, MemoryCategory::Activation}, {8, MemoryCategory::Inputs}};
  c10::DataPtr first, scratch, second;
  {
    const AllocationScope scope(results, {});
    first = allocate(640);
    scratch = allocate(96);
    second = allocate(8);
  }
  const CategoryBytes now = memory.read().current;
  EXPECT_EQ(now[MemoryCategory::Activation] - before.current[MemoryCategory::Activation], 640);
  EXPECT_EQ(now[MemoryCategory::Temp] - before.current[MemoryCategory::Temp], 96);
  EXPECT_EQ(now[MemoryCategory::Inputs] - before.current[MemoryCategory::Inputs], 8);
  EXPECT_EQ(memory.read().workspace_peak_bytes, before.workspace_peak_bytes);
}

TEST_F(CountingAllocator, PackingBeyondTheModelledScratchIsKeptOutOfTheLevel) {
  const std::vector<ExpectedResult> results{{640, MemoryCategory::Activation}};
  {
    const AllocationScope scope(results, {.packs = true, .modelled_bytes = 100});
    const c10::DataPtr result = allocate(640);
    const c10::DataPtr modelled = allocate(100);
    const c10::DataPtr packing = allocate(5000);
    EXPECT_EQ(above(memory.read().current_bytes), 740);
  }
  EXPECT_EQ(above(memory.read().peak_bytes), 740);
  EXPECT_EQ(memory.read().workspace_peak_bytes - before.workspace_peak_bytes, 5000);
}

TEST_F(CountingAllocator, TheLogSumsToTheLevel) {
  memory.start_log(std::chrono::steady_clock::now());
  memory.set_logged_task(TaskId(3));
  c10::DataPtr kept = allocate(40);
  { const c10::DataPtr brief = allocate(2); }
  const std::vector<MemoryChange> log = memory.take_log();
  ASSERT_EQ(log.size(), 3U);
  std::int64_t level = 0;
  for (const MemoryChange& change : log) {
    level += change.delta_bytes;
    EXPECT_EQ(change.task, TaskId(3));
  }
  EXPECT_EQ(level, 40);
  EXPECT_TRUE(memory.take_log().empty());
}

TEST_F(CountingAllocator, CountsWhatManyThreadsDo) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([] {
      for (int i = 0; i < 2000; ++i) {
        const c10::DataPtr brief = allocate(static_cast<std::size_t>(1 + i % 97));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(above(memory.read().current_bytes), 0);
  EXPECT_GE(above(memory.read().peak_bytes), 97);
  EXPECT_LE(above(memory.read().peak_bytes), 4 * 97);
}

}  // namespace
}  // namespace shardplan
