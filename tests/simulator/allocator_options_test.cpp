#include "simulator/allocator_options.h"

#include <gtest/gtest.h>

#include "core/error.h"
#include "tests/core/thrown.h"

namespace shardplan {
namespace {

std::string refusal(const std::string& text) {
  return thrown<UsageError>([&] { static_cast<void>(allocator_options_from_text(text)); });
}

TEST(AllocatorOptions, EmptyTextKeepsTheDefaults) {
  EXPECT_EQ(allocator_options_from_text(""), CachingAllocatorOptions{});
  const CachingAllocatorOptions base{.expandable_segments = true, .device_bytes = 5};
  EXPECT_EQ(allocator_options_from_text("", base), base);
}

TEST(AllocatorOptions, EverySettingIsRead) {
  const CachingAllocatorOptions read = allocator_options_from_text(
      "max_split_size_mb:128, max_non_split_rounding_mb:64,large_segment_size_mb:40,garbage_collection_threshold:0.8,"
      "per_process_memory_fraction:0.9,expandable_segments:True,backend:native,pinned_use_background_threads:True");
  EXPECT_EQ(read, (CachingAllocatorOptions{.max_split_size_bytes = 128 * kAllocatorMib,
                                           .max_non_split_rounding_bytes = 64 * kAllocatorMib,
                                           .large_segment_bytes = 40 * kAllocatorMib,
                                           .garbage_collection_threshold_fraction = 0.8,
                                           .expandable_segments = true,
                                           .memory_fraction = 0.9}));
}

// Interval i begins at 2^i MiB. The first entry also holds below itself; ">" holds for everything above the entry before it.
TEST(AllocatorOptions, RoundingGoesByIntervals) {
  using Table = std::array<std::int64_t, kNumRoundupIntervals>;
  const auto table = [](const std::string& value) {
    return allocator_options_from_text("roundup_power2_divisions:" + value).roundup_power2_divisions;
  };
  EXPECT_EQ(table("4"), (Table{4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4}));
  EXPECT_EQ(table("[4:8]"), (Table{8, 8, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(table("[2:1,8:2,>:4]"), (Table{1, 1, 0, 2, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4}));
  EXPECT_EQ(table("[1:0,65536:16]"), (Table{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16}));
}

TEST(AllocatorOptions, TheLastOfTwoHolds) {
  EXPECT_EQ(allocator_options_from_text("max_split_size_mb:100,max_split_size_mb:200").max_split_size_bytes, 200 * kAllocatorMib);
}

TEST(AllocatorOptions, EveryRefusalSaysWhatIsAllowed) {
  EXPECT_EQ(refusal("max_split_size:100"),
            "unknown setting 'max_split_size'\n  at: allocator settings\n  try: did you mean max_split_size_mb?");
  EXPECT_EQ(refusal("max_split_size_mb"),
            "'max_split_size_mb' is no setting\n  at: allocator settings\n  try: write key:value, joined by commas");
  EXPECT_EQ(refusal("max_split_size_mb:19"),
            "max_split_size_mb is 19, less than large segments have\n  at: allocator settings\n  try: give at least 20");
  EXPECT_EQ(refusal("max_split_size_mb:100x"), "max_split_size_mb is '100x'\n  at: allocator settings\n  try: give a whole number");
  EXPECT_EQ(refusal("large_segment_size_mb:10"), "large_segment_size_mb is 10\n  at: allocator settings\n  try: give at least 11");
  EXPECT_EQ(refusal("max_split_size_mb:30,large_segment_size_mb:40"),
            "max_split_size_mb is 30, less than large segments have\n  at: allocator settings\n  try: give at least 40");
  EXPECT_EQ(refusal("max_non_split_rounding_mb:30,large_segment_size_mb:40"),
            "max_non_split_rounding_mb is 30, less than large segments have\n  at: allocator settings\n  try: give at least 40");
  EXPECT_EQ(refusal("max_split_size_mb:9999999999999"),
            "max_split_size_mb is 9999999999999\n  at: allocator settings\n  try: give at most 1099511627776");
  EXPECT_EQ(refusal("garbage_collection_threshold:1"),
            "garbage_collection_threshold is 1\n  at: allocator settings\n  try: give a number between 0 and 1, both excluded");
  EXPECT_EQ(refusal("per_process_memory_fraction:1.5"),
            "per_process_memory_fraction is 1.5\n  at: allocator settings\n  try: give a number from 0 to 1");
  EXPECT_EQ(refusal("expandable_segments:true"),
            "expandable_segments is 'true'\n  at: allocator settings\n  try: give True or False");
  EXPECT_EQ(refusal("roundup_power2_divisions:3"),
            "roundup_power2_divisions has 3 divisions\n  at: allocator settings\n  try: give a power of two, or 0 for none");
  EXPECT_EQ(refusal("roundup_power2_divisions:[3:4]"),
            "roundup_power2_divisions has the size 3\n  at: allocator settings\n  try: give a power of two");
  EXPECT_EQ(refusal("roundup_power2_divisions:[4:4"),
            "the list of 'roundup_power2_divisions' does not end\n  at: allocator settings\n  try: close it with ]");
  EXPECT_EQ(refusal("backend:cudaMallocAsync"),
            "backend is 'cudaMallocAsync'\n  at: allocator settings\n  try: only the native allocator is modelled");
}

}  // namespace
}  // namespace shardplan
