#include "core/timeline.h"

#include <gtest/gtest.h>

namespace shardplan {
namespace {

TaskSpan span(std::int64_t task, TaskKind kind, const std::string& label, std::int64_t peak, std::int64_t after) {
  return {.task = TaskId(task),
          .kind = kind,
          .stream = StreamId(0),
          .peak_requested_bytes = peak,
          .after_requested_bytes = after,
          .label = label};
}

Timeline two_tasks() {
  Timeline timeline;
  timeline.tasks = {span(0, TaskKind::Forward, "forward", 10, 8), span(1, TaskKind::Backward, "", 12, 3)};
  return timeline;
}

TEST(FirstDifference, EqualLevelsGiveNoneWhateverTheTimes) {
  Timeline measured = two_tasks();
  measured.source = TimelineSource::Measured;
  measured.tasks[1].start = std::chrono::nanoseconds(5);
  measured.duration = std::chrono::nanoseconds(9);
  EXPECT_FALSE(first_difference(two_tasks(), measured));
}

TEST(FirstDifference, PeakIsLookedAtBeforeAfterAndEarlierTasksFirst) {
  Timeline measured = two_tasks();
  measured.tasks[1].after_requested_bytes = 4;
  auto difference = first_difference(two_tasks(), measured);
  ASSERT_TRUE(difference);
  EXPECT_EQ(difference->task, "backward");  // the kind, where a task has no label
  EXPECT_EQ(difference->what, "after");
  EXPECT_EQ(difference->predicted_bytes, 3);
  EXPECT_EQ(difference->measured_bytes, 4);

  measured.tasks[1].peak_requested_bytes = 13;
  difference = first_difference(two_tasks(), measured);
  ASSERT_TRUE(difference);
  EXPECT_EQ(difference->what, "peak");

  measured.tasks[0].after_requested_bytes = 9;
  difference = first_difference(two_tasks(), measured);
  ASSERT_TRUE(difference);
  EXPECT_EQ(difference->task, "forward");
}

TEST(FirstDifference, OtherTasksAreADifferenceOfTheirNumber) {
  Timeline shorter = two_tasks();
  shorter.tasks.pop_back();
  auto difference = first_difference(two_tasks(), shorter);
  ASSERT_TRUE(difference);
  EXPECT_EQ(difference->what, "tasks");
  EXPECT_EQ(difference->task, "backward");
  EXPECT_EQ(difference->predicted_bytes, 2);
  EXPECT_EQ(difference->measured_bytes, 1);
  difference = first_difference(shorter, two_tasks());
  ASSERT_TRUE(difference);
  EXPECT_EQ(difference->task, "backward");

  Timeline other = two_tasks();
  other.tasks[0].kind = TaskKind::Recompute;
  difference = first_difference(two_tasks(), other);
  ASSERT_TRUE(difference);
  EXPECT_EQ(difference->what, "tasks");
  EXPECT_EQ(difference->task, "forward");
}

}  // namespace
}  // namespace shardplan
