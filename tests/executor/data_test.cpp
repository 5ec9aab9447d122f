#include "executor/data.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "tests/executor/ranks.h"

namespace shardplan {
namespace {

using Ids = std::vector<std::int64_t>;

class DataTest : public testing::Test {
 protected:
  std::filesystem::path file(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return folder_ / name;
  }
  [[nodiscard]] DataRequest request(std::vector<std::filesystem::path> files, std::int64_t seq_len = 4) const {
    return {.files = std::move(files), .seq_len = seq_len, .vocab_size = 100, .pad_token_id = 99};
  }
  static std::pair<Ids, Ids> sample(const Samples& samples, std::int64_t k) {
    Ids ids(static_cast<std::size_t>(samples.seq_len())), targets(ids.size());
    samples.copy(k, ids, targets);
    return {ids, targets};
  }
  static std::string message_of(const DataRequest& r) {
    try {
      const Samples samples(r);
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  }
  TestFolder folder_;
};

TEST_F(DataTest, RowsAreCutShiftedAndPadded) {
  const Samples s(request({file("d.jsonl", R"({"input_ids": [1, 2, 3], "labels": [-100, 2, 3]}
{"input_ids": [5, 6, 7, 8, 9, 10], "labels": [5, 6, 7, 8, 9, 10]}
)")}));
  ASSERT_EQ(s.count(), 2);
  EXPECT_EQ(sample(s, 0), std::pair(Ids{1, 2, 3, 99}, Ids{2, 3, -100, -100}));
  // Cut to four first: the target after the fourth id is none, though a fifth label exists.
  EXPECT_EQ(sample(s, 1), std::pair(Ids{5, 6, 7, 8}, Ids{6, 7, 8, -100}));
  EXPECT_EQ(s.num_targets(0), 2);
}

TEST_F(DataTest, MissingLabelsAreTheIdsAndAMaskEndsTheRow) {
  const Samples s(
      request({file("d.jsonl", "{\"input_ids\": [1, 2]}\n\n{\"input_ids\": [3, 4, 5], \"attention_mask\": [1, 1, 0]}\n")}));
  EXPECT_EQ(sample(s, 0), std::pair(Ids{1, 2, 99, 99}, Ids{2, -100, -100, -100}));
  EXPECT_EQ(sample(s, 1), std::pair(Ids{3, 4, 99, 99}, Ids{4, -100, -100, -100}));
}

TEST_F(DataTest, PackedRowsLieEndToEndOverAllFiles) {
  DataRequest r = request({file("a.jsonl", R"({"input_ids": [1, 2, 3], "labels": [1, -100, 3]})"),
                           file("b.jsonl", R"({"input_ids": [4, 5, 6, 7, 8, 9]})")});
  r.pack = true;
  const Samples s(r);
  // x = 1 2 3 | 4 5 6 7 8 9, y = -100 3 -100 | 5 6 7 8 9 -100: nine pairs, two blocks of four, one dropped.
  ASSERT_EQ(s.count(), 2);
  EXPECT_EQ(sample(s, 0), std::pair(Ids{1, 2, 3, 4}, Ids{-100, 3, -100, 5}));
  EXPECT_EQ(sample(s, 1), std::pair(Ids{5, 6, 7, 8}, Ids{6, 7, 8, 9}));
}

std::string words16(const Ids& ids) {
  std::string bytes;
  for (const std::int64_t id : ids) bytes += {static_cast<char>(id & 0xff), static_cast<char>(id >> 8)};
  return bytes;
}
std::string words32(const Ids& ids) {
  std::string bytes;
  for (const std::int64_t id : ids) {
    for (int i = 0; i < 4; ++i) bytes += static_cast<char>(id >> (8 * i) & 0xff);
  }
  return bytes;
}

TEST_F(DataTest, FlatTokensShareTheirBorders) {
  // Nine tokens: samples start at 0 and 4; the ninth is only a target.
  const Ids ids = {10, 11, 12, 13, 14, 15, 16, 17, 18};
  const Samples s(request({file("t.bin", words16(ids))}));
  ASSERT_EQ(s.count(), 2);
  EXPECT_EQ(sample(s, 1), std::pair(Ids{14, 15, 16, 17}, Ids{15, 16, 17, 18}));
  EXPECT_EQ(Samples(request({file("t.bin", words16({1, 2, 3, 4, 5, 6, 7, 8}))})).count(), 1)
      << "eight tokens hold one sample and its last target";
}

TEST_F(DataTest, TokensJsonSaysTheWidth) {
  const auto bin = file("w.bin", words32({1, 2, 3, 4, 70}));
  file("tokens.json", R"({"dtype": "uint32", "count": 5, "vocab_size": 100})");
  EXPECT_EQ(sample(Samples(request({bin})), 0), std::pair(Ids{1, 2, 3, 4}, Ids{2, 3, 4, 70}));
}

TEST_F(DataTest, HeaderOfLlmCIsReadAndChecked) {
  Ids header(256, 0);
  header[0] = 20240520;
  header[1] = 1;
  header[2] = 5;
  EXPECT_EQ(sample(Samples(request({file("l.bin", words32(header) + words16({1, 2, 3, 4, 5}))})), 0),
            std::pair(Ids{1, 2, 3, 4}, Ids{2, 3, 4, 5}));
  header[0] = 20240801;
  header[1] = 7;
  EXPECT_EQ(sample(Samples(request({file("l.bin", words32(header) + words32({1, 2, 3, 4, 5}))})), 0),
            std::pair(Ids{1, 2, 3, 4}, Ids{2, 3, 4, 5}));
  header[2] = 6;
  EXPECT_EQ(message_of(request({file("l.bin", words32(header) + words32({1, 2, 3, 4, 5}))})),
            "header promises 6 tokens in 1,048 bytes, the file has 1,044\n  at: " + (folder_ / "l.bin").string() +
                "\n  try: the copy or download did not finish: fetch the file again");
}

TEST_F(DataTest, IdsBeyondTheVocabularyAreRefusedWithFileLineAndToken) {
  const std::string remedy = "\n  try: encode the text with the tokenizer of this model";
  EXPECT_EQ(message_of(request({file("d.jsonl", "{\"input_ids\": [1]}\n{\"input_ids\": [1, 2, 100]}\n")})),
            "token id 100 is outside the vocabulary of 100\n  at: " + (folder_ / "d.jsonl").string() + ":2, token 2" + remedy);
  EXPECT_EQ(message_of(request({file("d.jsonl", R"({"input_ids": [1, 2], "labels": [-1, 2]})")})),
            "label -1 is outside the vocabulary of 100\n  at: " + (folder_ / "d.jsonl").string() + ":1, token 0" + remedy);
  EXPECT_EQ(message_of(request({file("t.bin", words16({1, 2, 3, 4, 300}))})),
            "token id 300 is outside the vocabulary of 100\n  at: " + (folder_ / "t.bin").string() + ", token 4" + remedy);
}

TEST_F(DataTest, NamesWhatIsWrongWithARow) {
  const std::string at = "\n  at: " + (folder_ / "d.jsonl").string() + ":1";
  EXPECT_EQ(message_of(request({file("d.jsonl", "[1]")})), "line is no JSON object" + at);
  EXPECT_EQ(message_of(request({file("d.jsonl", R"({"ids": [1]})")})),
            "row has no 'input_ids'" + at + "\n  try: each line is {\"input_ids\": [...], \"labels\": [...]}");
  EXPECT_EQ(message_of(request({file("d.jsonl", R"({"input_ids": [1.5]})")})), "'input_ids' is no list of integers" + at);
  EXPECT_EQ(message_of(request({file("d.jsonl", R"({"input_ids": [1, 2], "labels": [1]})")})),
            "row has 2 input_ids and 1 labels" + at + "\n  try: labels are not shifted: one for each id, -100 where none");
  EXPECT_EQ(message_of(request({file("d.jsonl", R"({"input_ids": [1, 2], "attention_mask": [0, 1]})")})),
            "'attention_mask' is not ones followed by zeros, one for each id" + at + "\n  try: pad on the right");
  EXPECT_EQ(message_of(request({file("d.jsonl", R"({"prompt": "a", "completion": "b"})")})),
            "row holds text under 'prompt'; the executor reads token ids" + at +
                "\n  try: encode it first: scripts/encode_text.py --model DIR --out DIR FILE");
  EXPECT_EQ(
      message_of(request({file("d.txt", "")})),
      "data file '" + (folder_ / "d.txt").string() +
          "' is neither .jsonl nor .bin\n  at: --data\n  try: encode it first: scripts/encode_text.py --model DIR --out DIR FILE");
  EXPECT_EQ(message_of(request({file("t.bin", words16({1, 2}))})),
            "the data holds no whole sample of 4 tokens\n  at: " + (folder_ / "t.bin").string() +
                "\n  try: give more data or a smaller --seq-len");
}

TEST(SampleOrder, EveryEpochIsAPermutation) {
  SampleOrder order(23, 5);
  std::vector<std::int64_t> last;
  for (int epoch = 0; epoch < 4; ++epoch) {
    std::vector<std::int64_t> seen;
    for (int i = 0; i < 23; ++i) seen.push_back(order.sample(epoch * 23 + i));
    EXPECT_NE(seen, last);
    last = seen;
    std::sort(seen.begin(), seen.end());
    std::vector<std::int64_t> all(23);
    std::iota(all.begin(), all.end(), 0);
    EXPECT_EQ(seen, all);
  }
}

TEST(SampleOrder, AgreesWithTheReferenceTrainer) {
  // The reference trainer's Order(10, 3), two epochs.
  const Ids expected = {4, 9, 7, 1, 6, 0, 5, 8, 3, 2, 1, 4, 6, 3, 9, 5, 2, 8, 0, 7};
  SampleOrder order(10, 3);
  for (std::size_t g = 0; g < expected.size(); ++g) EXPECT_EQ(order.sample(static_cast<std::int64_t>(g)), expected[g]);
  EXPECT_EQ(order.sample(0), 4) << "going back to an earlier epoch gives the same order";
}

TEST(SampleOrder, AStepIsDealtOutWithoutGapsOrRepeats) {
  SampleOrder order(1000, std::nullopt);
  const StepShape shape{.data_ranks = 3, .micro_batch = 2, .grad_accum = 2};
  Ids dealt;
  for (std::int64_t t = 0; t < 2; ++t) {
    for (std::int64_t a = 0; a < 2; ++a) {
      for (std::int64_t d = 0; d < 3; ++d) {
        for (const std::int64_t k : samples_of(order, shape, t, a, d)) dealt.push_back(k);
      }
    }
  }
  Ids expected(24);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(dealt, expected);
}

TEST_F(DataTest, TargetsOfAStepAreThoseOfItsSamples) {
  std::string rows;
  for (int r = 0; r < 5; ++r) {
    rows += "{\"input_ids\": [0";
    for (int i = 0; i < r; ++i) rows += ", 1";
    rows += "]}\n";
  }
  const Samples s(request({file("d.jsonl", rows)}, 8));
  SampleOrder order(s.count(), std::nullopt);
  const StepShape shape{.data_ranks = 2, .micro_batch = 1, .grad_accum = 2};
  // Row r has r targets. Step 0 takes rows 0-3, step 1 rows 4, 0, 1, 2.
  EXPECT_EQ(targets_of_step(s, order, shape, 0), 0 + 1 + 2 + 3);
  EXPECT_EQ(targets_of_step(s, order, shape, 1), 4 + 0 + 1 + 2);
}

}  // namespace
}  // namespace shardplan
