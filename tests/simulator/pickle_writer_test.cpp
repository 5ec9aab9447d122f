#include "simulator/pickle_writer.h"

#include <gtest/gtest.h>

#include <functional>

#include "core/error.h"

namespace shardplan {
namespace {

using namespace std::string_literals;

std::string pickled(const std::function<void(PickleWriter&)>& write) {
  PickleWriter pickle;
  write(pickle);
  return std::move(pickle).finish();
}

// Protocol 2: \x80\x02, the value, a full stop. K one byte, J four bytes, \x8a a length and its bytes, all little-endian.
TEST(PickleWriter, IntegersTakeTheShortestOfThreeForms) {
  EXPECT_EQ(pickled([](PickleWriter& p) { p.integer(7); }), "\x80\x02K\x07."s);
  EXPECT_EQ(pickled([](PickleWriter& p) { p.integer(255); }), "\x80\x02K\xff."s);
  EXPECT_EQ(pickled([](PickleWriter& p) { p.integer(256); }), "\x80\x02J\x00\x01\x00\x00."s);
  EXPECT_EQ(pickled([](PickleWriter& p) { p.integer(-1); }), "\x80\x02J\xff\xff\xff\xff."s);
  EXPECT_EQ(pickled([](PickleWriter& p) { p.integer(std::int64_t{1} << 40); }),
            "\x80\x02\x8a\x08\x00\x00\x00\x00\x00\x01\x00\x00."s);
}

TEST(PickleWriter, NumbersAreBigEndianAndTruthsOneByte) {
  EXPECT_EQ(pickled([](PickleWriter& p) { p.number(1.0); }), "\x80\x02G\x3f\xf0\x00\x00\x00\x00\x00\x00."s);
  EXPECT_EQ(pickled([](PickleWriter& p) { p.truth(true); }), "\x80\x02\x88."s);
  EXPECT_EQ(pickled([](PickleWriter& p) { p.truth(false); }), "\x80\x02\x89."s);
}

// X: four bytes of length, the text; q: remember it under a number; h: what was remembered under it.
TEST(PickleWriter, EqualTextIsWrittenOnce) {
  const std::string bytes = pickled([](PickleWriter& p) {
    p.begin_list();
    p.text("ab");
    p.text("ab");
    p.end_list();
  });
  EXPECT_EQ(bytes, "\x80\x02](X\x02\x00\x00\x00"s + "abq\x00h\x00"s + "e."s);
}

TEST(PickleWriter, DictionariesPairKeysAndValues) {
  const std::string bytes = pickled([](PickleWriter& p) {
    p.begin_dict();
    p.key("a");
    p.integer(1);
    p.key("b");
    p.begin_list();
    p.end_list();
    p.end_dict();
  });
  EXPECT_EQ(bytes, "\x80\x02}(X\x01\x00\x00\x00"s + "aq\x00K\x01X\x01\x00\x00\x00"s + "bq\x01](eu."s);
}

// A reader that puts a whole batch on its stack meets at most 1000 items.
TEST(PickleWriter, LongListsComeInBatches) {
  const std::string bytes = pickled([](PickleWriter& p) {
    p.begin_list();
    for (int i = 0; i < 2001; ++i) p.integer(7);
    p.end_list();
  });
  std::string thousand;
  for (int i = 0; i < 1000; ++i) thousand += "K\x07";
  EXPECT_EQ(bytes, "\x80\x02]("s + thousand + "e(" + thousand + "e(" + "K\x07" + "e.");
}

TEST(PickleWriter, UnpairedCallsAreOurBug) {
  EXPECT_THROW(pickled([](PickleWriter& p) { p.begin_list(); }), CheckFailure);
  EXPECT_THROW(pickled([](PickleWriter& p) { p.end_dict(); }), CheckFailure);
  EXPECT_THROW(pickled([](PickleWriter& p) { p.begin_dict(), p.integer(1); }), CheckFailure);
  EXPECT_THROW(pickled([](PickleWriter& p) { p.begin_dict(), p.key("a"), p.end_dict(); }), CheckFailure);
  EXPECT_THROW(pickled([](PickleWriter& p) { p.integer(1), p.integer(2); }), CheckFailure);
  EXPECT_THROW(pickled([](PickleWriter&) {}), CheckFailure);
}

}  // namespace
}  // namespace shardplan
