#include "core/units.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "core/error.h"

namespace shardplan {
namespace {

TEST(Units, BinaryAndDecimalPrefixesAreToldApart) {
  const std::int64_t gib = std::int64_t{1} << 30;
  EXPECT_EQ(bytes_from_text("80 GiB"), 80 * gib);
  EXPECT_EQ(bytes_from_text("80 GB"), 80'000'000'000);
  EXPECT_EQ(bytes_from_text("80GiB"), bytes_from_text("80 GiB"));
  EXPECT_EQ(bytes_from_text("1.5 KiB"), 1536);
  EXPECT_EQ(bytes_from_text("512 B"), 512);
  EXPECT_EQ(bytes_from_text("2 TiB"), 2048 * gib);
  EXPECT_EQ(bytes_from_text("64 kB"), bytes_from_text("64 KB"));
}

TEST(Units, IntegersOfBytesAreExactBeyondTheMantissaOfADouble) {
  const std::int64_t odd = (std::int64_t{1} << 53) + 1;  // no double holds it
  EXPECT_EQ(bytes_from_text(std::to_string(odd) + " B"), odd);
  EXPECT_EQ(bytes_from_text("85018877624 B"), 85'018'877'624);
}

TEST(Units, WhatIsNoQuantityGivesNothing) {
  for (const char* text : {"", "80", "GiB", "80  GiB", " 80 GiB", "80 gib", "80 GiB ", "-1 GiB", "80 GiB/s", "1e3 GiB", "0x10 B",
                           "nan B", "inf B", "9223372036854775808 B", "9000000000 GiB"})
    EXPECT_FALSE(bytes_from_text(text)) << text;
  for (const char* text : {"900 GB", "900 /s", "900 GB/ s", "/s", "900 FLOP/s"})
    EXPECT_FALSE(bytes_per_second_from_text(text)) << text;
  for (const char* text : {"989 TFLOPs", "989 TFLOP", "989 TFLOPS", "989 GB/s"})
    EXPECT_FALSE(flops_per_second_from_text(text)) << text;
  for (const char* text : {"5", "5 sec", "5 u", "5 us/s"}) EXPECT_FALSE(seconds_from_text(text)) << text;
}

TEST(Units, RatesAndTimes) {
  EXPECT_DOUBLE_EQ(*bytes_per_second_from_text("900 GB/s"), 900e9);
  EXPECT_DOUBLE_EQ(*bytes_per_second_from_text("1 GiB/s"), 1024.0 * 1024.0 * 1024.0);
  EXPECT_DOUBLE_EQ(*flops_per_second_from_text("989 TFLOP/s"), 989e12);
  EXPECT_DOUBLE_EQ(*seconds_from_text("5 us"), 5e-6);
  EXPECT_DOUBLE_EQ(*seconds_from_text("1.5ms"), 1.5e-3);
}

TEST(Units, BytesPrintInTheLargestBinaryUnitBelow) {
  const std::int64_t kib = 1024, mib = 1024 * kib, gib = 1024 * mib;
  EXPECT_EQ(text_from_bytes(85'018'877'624), "79.18 GiB");  // 85018877624 / 2^30 = 79.1800...
  EXPECT_EQ(text_from_bytes(gib), "1.00 GiB");
  EXPECT_EQ(text_from_bytes(512 * mib), "512.00 MiB");
  EXPECT_EQ(text_from_bytes(kib), "1.00 KiB");
  EXPECT_EQ(text_from_bytes(kib - 1), "1023 B");
  EXPECT_EQ(text_from_bytes(0), "0 B");
  EXPECT_EQ(text_from_bytes(-2 * gib), "-2.00 GiB");
  EXPECT_EQ(gib_from_bytes(gib / 2), "0.50");
}

TEST(Units, CountsAndThousands) {
  EXPECT_EQ(text_from_count(8'030'261'248), "8.03 B");
  EXPECT_EQ(text_from_count(124'439'808), "124.44 M");
  EXPECT_EQ(text_from_count(999), "999");
  EXPECT_EQ(text_with_thousands(8'030'261'248), "8,030,261,248");
  EXPECT_EQ(text_with_thousands(-1000), "-1,000");
  EXPECT_EQ(text_with_thousands(-100), "-100");
  EXPECT_EQ(text_with_thousands(0), "0");
}

TEST(Units, DurationsPrintThreeSignificantPlacesOrSo) {
  EXPECT_EQ(text_from_seconds(1.24), "1.24 s");
  EXPECT_EQ(text_from_seconds(0.038), "38 ms");
  EXPECT_EQ(text_from_seconds(0.00123), "1.23 ms");
  EXPECT_EQ(text_from_seconds(5e-6), "5.00 us");
  EXPECT_EQ(text_from_seconds(0), "0 s");
  EXPECT_EQ(text_from_seconds(90), "1.5 min");
}

TEST(Units, SecondsBecomeNanosecondsRoundedUp) {
  EXPECT_EQ(nanoseconds_from_seconds(0).count(), 0);
  EXPECT_EQ(nanoseconds_from_seconds(0.25e-9).count(), 1);
  EXPECT_EQ(nanoseconds_from_seconds(0.5).count(), 500'000'000);
  EXPECT_THROW((void)nanoseconds_from_seconds(-1e-9), CheckFailure);
}

RC_GTEST_PROP(Units, ExactByteTextsReadBackEqual, ()) {
  const auto bytes = *rc::gen::inRange<std::int64_t>(0, INT64_MAX);
  RC_ASSERT(bytes_from_text(std::to_string(bytes) + " B") == bytes);
}

RC_GTEST_PROP(Units, ThousandsSeparatorsAreEveryThirdPlaceAndNothingElse, (std::int64_t number)) {
  std::string text = text_with_thousands(number);
  const std::size_t first_digit = number < 0 ? 1 : 0;
  for (std::size_t i = text.size(), place = 1; i-- > first_digit; ++place) RC_ASSERT((text[i] == ',') == (place % 4 == 0));
  std::erase(text, ',');
  RC_ASSERT(text == std::to_string(number));
}

RC_GTEST_PROP(Units, RoundUpIsTheSmallestMultipleNotBelow, ()) {
  const auto value = *rc::gen::inRange<std::int64_t>(0, 1'000'000'000'000);
  const auto step = *rc::gen::inRange<std::int64_t>(1, 1'000'000);
  const std::int64_t rounded = round_up(value, step);
  RC_ASSERT(rounded % step == 0);
  RC_ASSERT(rounded >= value);
  RC_ASSERT(rounded - value < step);
}

}  // namespace
}  // namespace shardplan
