#include "executor/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>

#include "core/error.h"
#include "executor/safetensors_writer.h"
#include "executor/seeded_words.h"
#include "tests/executor/ranks.h"

namespace shardplan {
namespace {

// A file with this header text and so many bytes of data.
std::string file_of(const std::string& header, std::size_t data_bytes) {
  std::string file;
  for (int i = 0; i < 8; ++i) file += static_cast<char>(header.size() >> (8 * i) & 0xff);
  return file + header + std::string(data_bytes, 'd');
}

SafetensorsHeader read(const std::string& file) {
  return header_from_bytes(std::as_bytes(std::span(file)), static_cast<std::int64_t>(file.size()), "m.safetensors");
}

std::string message_of(const std::string& file) {
  try {
    (void)read(file);
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "no error";
}

constexpr const char* kDamaged =
    "\n  try: the file is damaged or was not written by a safetensors library: copy or convert it again";
constexpr const char* kCopyAgain = "\n  try: the copy or download did not finish: fetch the file again";
const std::string kA = R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}})";

TEST(SafetensorsHeader, ReadsNamesShapesAndPlaces) {
  // Two tensors of 6*4 and 2*2 bytes behind 8 + header bytes.
  const std::string header =
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2],"data_offsets":[24,28]},)" + kA.substr(1);
  const SafetensorsHeader h = read(file_of(header, 28));
  ASSERT_EQ(h.tensors.size(), 2U);
  const std::int64_t begin = 8 + static_cast<std::int64_t>(header.size());
  EXPECT_EQ(h.tensors[0].name, "a");
  EXPECT_EQ(h.tensors[0].begin_bytes, begin);
  EXPECT_EQ(h.tensors[0].shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(h.tensors[1].dtype, DType::BF16);
  EXPECT_EQ(h.tensors[1].end_bytes, begin + 28);
  EXPECT_EQ(h.metadata.at("format"), "pt");
}

TEST(SafetensorsHeader, ScalarsAndEmptyTensorsAreLegal) {
  const SafetensorsHeader h = read(file_of(
      R"({"none":{"dtype":"F32","shape":[0,5],"data_offsets":[0,0]},"one":{"dtype":"F64","shape":[],"data_offsets":[0,8]}})", 8));
  ASSERT_EQ(h.tensors.size(), 2U);
  EXPECT_EQ(h.tensors[1].numel(), 1);
}

TEST(SafetensorsHeader, RefusesWhatIsShorterThanItSays) {
  EXPECT_EQ(
      message_of("abc"),
      std::string("safetensors file is truncated: 3 bytes, the header length alone takes 8\n  at: m.safetensors") + kCopyAgain);
  EXPECT_EQ(message_of(file_of(kA, 24).substr(0, 30)), "safetensors file is truncated: its header ends at byte " +
                                                           std::to_string(8 + kA.size()) + ", the file at 30\n  at: m.safetensors" +
                                                           kCopyAgain);
  EXPECT_EQ(
      message_of(file_of(kA, 20)),
      std::string(
          "safetensors file is truncated: data ends at byte 24 of the buffer, which has 20\n  at: m.safetensors, tensor 'a'") +
          kCopyAgain);
}

TEST(SafetensorsHeader, RefusesALengthBeyondTheLimit) {
  std::string file = file_of(kA, 24);
  file[3] = 0x7f;  // 0x7f000000 and more
  EXPECT_EQ(message_of(file), "safetensors header claims " + std::to_string(0x7f000000U + kA.size()) +
                                  " bytes, the limit is 100,000,000\n  at: m.safetensors" + kDamaged);
}

TEST(SafetensorsHeader, RefusesWhatIsNoHeader) {
  EXPECT_EQ(message_of(file_of("", 0)), std::string("safetensors header does not start with '{'\n  at: m.safetensors") + kDamaged);
  EXPECT_EQ(message_of(file_of(" {}", 0)),
            std::string("safetensors header does not start with '{'\n  at: m.safetensors") + kDamaged);
  EXPECT_EQ(message_of(file_of("{\"a\":", 0)),
            std::string("safetensors header is not JSON: error at byte 6 of the header\n  at: m.safetensors") + kDamaged);
  EXPECT_EQ(
      message_of(file_of("{\"a\":7}", 0)),
      std::string("safetensors header holds the number 7 where the format has none\n  at: m.safetensors, tensor 'a'") + kDamaged);
  EXPECT_EQ(
      message_of(file_of(R"({"__metadata__":{"n":{}}})", 0)),
      std::string("safetensors header holds an object where the format has none\n  at: m.safetensors, tensor '__metadata__'") +
          kDamaged);
  EXPECT_EQ(
      message_of(file_of(R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8)),
      std::string("safetensors header holds the number -2 where the format has none\n  at: m.safetensors, tensor 'a'") + kDamaged);
  EXPECT_EQ(message_of(file_of(R"({"a":{"dtype":"F32","shape":[2],"offsets":[0,8]}})", 8)),
            std::string("unknown key 'offsets'\n  at: m.safetensors, tensor 'a'") + kDamaged);
  EXPECT_EQ(message_of(file_of(R"({"a":{"dtype":"F32","shape":[2]}})", 8)),
            std::string("key 'data_offsets' is missing\n  at: m.safetensors, tensor 'a'") + kDamaged);
}

TEST(SafetensorsHeader, RefusesNamesListedTwice) {
  EXPECT_EQ(message_of(file_of("{" + kA.substr(1, kA.size() - 2) + "," + kA.substr(1), 24)),
            std::string("name is listed twice in the header\n  at: m.safetensors, tensor 'a'") + kDamaged);
}

TEST(SafetensorsHeader, RefusesSpansThatLie) {
  EXPECT_EQ(message_of(file_of(R"({"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,20]}})", 20)),
            std::string("data spans 20 bytes, but F32 of shape [2, 3] takes 24\n  at: m.safetensors, tensor 'a'") + kDamaged);
  EXPECT_EQ(message_of(file_of(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8)),
            std::string("data_offsets [8, 0] run backwards\n  at: m.safetensors, tensor 'a'") + kDamaged);
  // 2^32 * 2^32 elements.
  EXPECT_EQ(message_of(file_of(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0)),
            std::string("shape [4294967296, 4294967296] overflows\n  at: m.safetensors, tensor 'a'") + kDamaged);
  EXPECT_EQ(message_of(file_of(R"({"a":{"dtype":"F5","shape":[2],"data_offsets":[0,8]}})", 8)),
            "unknown dtype 'F5'\n  at: m.safetensors, tensor 'a'\n  try: convert the tensor to F32, BF16 or F16");
}

TEST(SafetensorsHeader, RefusesGapsOverlapsAndLeftovers) {
  const auto two = [](const char* offsets) {
    return kA.substr(0, kA.size() - 1) + R"(,"b":{"dtype":"U8","shape":[4],"data_offsets":)" + offsets + "}}";
  };
  EXPECT_EQ(message_of(file_of(two("[28,32]"), 32)),
            std::string(
                "data starts at byte 28 of the buffer, but the data before it ends at 24: a gap\n  at: m.safetensors, tensor 'b'") +
                kDamaged);
  EXPECT_EQ(
      message_of(file_of(two("[20,24]"), 24)),
      std::string(
          "data starts at byte 20 of the buffer, but the data before it ends at 24: an overlap\n  at: m.safetensors, tensor 'b'") +
          kDamaged);
  EXPECT_EQ(message_of(file_of(kA, 30)), std::string("6 bytes follow the last tensor\n  at: m.safetensors") + kDamaged);
}

// Bytes changed, dropped, doubled: either a ConfigError, or a header whose spans tile the file.
TEST(SafetensorsHeader, AnyMutationIsRefusedOrTilesTheFile) {
  const HeaderLayout layout =
      layout_header({{"w", DType::F32, {3, 4}}, {"v", DType::BF16, {7}}, {"n", DType::U8, {2, 0}}}, {{"format", "pt"}});
  const std::string valid = layout.prefix + std::string(static_cast<std::size_t>(layout.file_bytes) - layout.prefix.size(), 'd');
  const SeededWords words(7, "mutations");
  std::uint64_t at = 0;
  int refused = 0;
  constexpr int kRounds = 20000;
  for (int round = 0; round < kRounds; ++round) {
    std::string file = valid;
    for (std::uint64_t edits = 1 + words.word(at++) % 4; edits > 0; --edits) {
      const std::size_t where = words.word(at++) % file.size();
      switch (words.word(at++) % 4) {
        case 0:
          file[where] = static_cast<char>(words.word(at++));
          break;
        case 1:
          file.erase(where, 1 + words.word(at++) % 9);
          break;
        case 2:
          file.insert(where, file.substr(where, 1 + words.word(at++) % 20));
          break;
        default:
          file[where] = "0123456789[]{},:\""[words.word(at++) % 17];
          break;
      }
      if (file.empty()) file = "x";
    }
    try {
      const SafetensorsHeader h = read(file);
      std::int64_t end = h.data_begin_bytes;
      for (const StoredTensor& t : h.tensors) {
        ASSERT_EQ(t.begin_bytes, end);
        end = t.end_bytes;
      }
      ASSERT_EQ(end, static_cast<std::int64_t>(file.size()));
    } catch (const ConfigError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, kRounds / 2);
}

std::string bytes_of(std::int64_t n, char value) { return std::string(static_cast<std::size_t>(n), value); }

TEST(SafetensorsWriter, WhatIsWrittenIsReadBack) {
  const TestFolder folder;
  {
    SafetensorsWriter writer(folder / "model.safetensors",
                             {{"z", DType::BF16, {3}}, {"b", DType::F32, {2, 2}}, {"a", DType::F32, {1}}});
    writer.write("b", 8, std::as_bytes(std::span<const char>(bytes_of(8, 'B'))));  // in any order, in pieces
    writer.write("z", 0, std::as_bytes(std::span<const char>(bytes_of(6, 'Z'))));
    writer.write("a", 0, std::as_bytes(std::span<const char>(bytes_of(4, 'A'))));
    writer.write("b", 0, std::as_bytes(std::span<const char>(bytes_of(8, 'b'))));
    EXPECT_FALSE(std::filesystem::exists(folder / "model.safetensors"));
    writer.finish();
  }
  const StoredModel model(folder.path());
  ASSERT_EQ(model.tensors().size(), 3U);
  const std::span<const std::byte> b = model.bytes(*model.find("b"));
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(b.data()), b.size()), "bbbbbbbbBBBBBBBB");
  // Wider dtypes first, then by name; data begins at a multiple of 8.
  const auto begin = [&](const char* name) { return model.find(name)->begin_bytes; };
  EXPECT_LT(begin("a"), begin("b"));
  EXPECT_LT(begin("b"), begin("z"));
  EXPECT_EQ(begin("a") % 8, 0);
  EXPECT_NE(text_of_file(folder / "model.safetensors").find(R"("__metadata__":{"format":"pt"})"), std::string::npos);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 1);
}

TEST(SafetensorsWriter, AnUnfinishedFileLeavesNothing) {
  const TestFolder folder;
  { SafetensorsWriter writer(folder / "model.safetensors", {{"a", DType::F32, {1}}}); }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(SafetensorsWriter, AMissingByteIsABrokenLaw) {
  const TestFolder folder;
  SafetensorsWriter writer(folder / "model.safetensors", {{"a", DType::F32, {2}}});
  writer.write("a", 0, std::as_bytes(std::span<const char>(bytes_of(4, 'a'))));
  EXPECT_THROW(writer.finish(), CheckFailure);
}

TEST(ModelWriter, SplitsBetweenTensorsAndWritesTheIndex) {
  const TestFolder folder;
  ModelWriter writer(folder.path(), {{"a", DType::F32, {4}}, {"b", DType::F32, {4}}, {"c", DType::F32, {1}}}, 20);  // 16, 16 + 4
  for (const char* name : {"a", "b"}) writer.write(name, 0, std::as_bytes(std::span<const char>(bytes_of(16, name[0]))));
  writer.write("c", 0, std::as_bytes(std::span<const char>(bytes_of(4, 'c'))));
  writer.finish();
  EXPECT_EQ(text_of_file(folder / "model.safetensors.index.json"),
            R"({
  "metadata": {
    "total_size": 36
  },
  "weight_map": {
    "a": "model-00001-of-00002.safetensors",
    "b": "model-00002-of-00002.safetensors",
    "c": "model-00002-of-00002.safetensors"
  }
}
)");
  const StoredModel model(folder.path());
  EXPECT_EQ(static_cast<char>(model.bytes(*model.find("b"))[3]), 'b');
}

std::string model_message(const std::filesystem::path& folder) {
  try {
    const StoredModel model(folder);
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

void write_text(const std::filesystem::path& file, const std::string& text) { std::ofstream(file, std::ios::binary) << text; }

TEST(StoredModel, NamesWhatIsWrongWithAnIndex) {
  const TestFolder folder;
  const std::string index = (folder / "model.safetensors.index.json").string();
  EXPECT_EQ(model_message(folder.path()),
            "no model.safetensors and no model.safetensors.index.json\n  at: " + folder.path().string() +
                "\n  try: name a directory with weights in safetensors form, or make one with `execute init`");
  write_text(index, "{}");
  EXPECT_EQ(model_message(folder.path()), "index of the checkpoint holds no object 'weight_map'\n  at: " + index +
                                              "\n  try: copy or convert the checkpoint again");
  write_text(index, R"({"weight_map": {"a": "../x.safetensors"}})");
  EXPECT_EQ(model_message(folder.path()),
            "tensor 'a' is given to \"../x.safetensors\", which is no safetensors file beside the index\n  at: " + index +
                "#/weight_map\n  try: copy or convert the checkpoint again");
  write_text(index, R"({"weight_map": {"a": "x.safetensors", "q": "x.safetensors"}})");
  EXPECT_EQ(model_message(folder.path()),
            "cannot open file: No such file or directory\n  at: " + (folder / "x.safetensors").string());
  write_text(folder / "x.safetensors", file_of(kA, 24));
  EXPECT_EQ(model_message(folder.path()), "index says that tensor 'q' is in x.safetensors, which does not hold it\n  at: " + index +
                                              "\n  try: copy or convert the checkpoint again");
  write_text(folder / "y.safetensors", file_of(kA, 24));
  write_text(index, R"({"weight_map": {"a": "x.safetensors", "b": "y.safetensors"}})");
  EXPECT_EQ(model_message(folder.path()), "tensor 'a' stands in two files\n  at: " + (folder / "x.safetensors").string() + " and " +
                                              (folder / "y.safetensors").string() +
                                              "\n  try: keep the file that the index names and remove the other");
}

}  // namespace
}  // namespace shardplan
