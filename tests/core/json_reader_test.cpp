#include "core/json_reader.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "tests/core/thrown.h"

namespace shardplan {
namespace {

using Json = nlohmann::ordered_json;

std::string parse_error(const std::string& text) {
  return thrown<ConfigError>([&] { (void)json_from_text(text, "job.json"); });
}

// What `read` throws on a document.
template <class Read>
std::string error_of(const std::string& text, Read read) {
  const Json document = json_from_text(text, "job.json");
  return thrown<ConfigError>([&] {
    JsonReader r(document, "job.json");
    read(r);
  });
}

TEST(JsonText, SyntaxErrorsGiveLineAndColumn) {
  EXPECT_EQ(
      parse_error("{\n  \"a\": 1,\n  \"b\" 2\n}"),
      "no valid JSON: syntax error while parsing object separator - unexpected number literal; expected ':'\n  at: job.json:3:7");
  EXPECT_EQ(parse_error("[1, 2"),
            "no valid JSON: syntax error while parsing array - unexpected end of input; expected ']'\n  at: job.json:1:6");
  EXPECT_EQ(parse_error(""),
            "no valid JSON: syntax error while parsing value - unexpected end of input; expected '[', '{', or a literal"
            "\n  at: job.json:1:1");
}

TEST(JsonText, NumbersThatNoDoubleHoldsAreRefused) {
  EXPECT_EQ(parse_error("{\"a\": 1e999}"), "no valid JSON: number overflow parsing '1e999'\n  at: job.json");
}

TEST(JsonText, AKeyGivenTwiceIsRefusedWithItsPlace) {
  EXPECT_EQ(parse_error(R"({"a": 1, "b": {"c": 1, "c": 2}})"),
            "the key \"c\" stands twice in one object\n  at: job.json#/b/c\n  try: keep one of the two");
  EXPECT_EQ(parse_error(R"({"units": [{"x": 1}, {"y": 1, "y": 2}]})"),
            "the key \"y\" stands twice in one object\n  at: job.json#/units/1/y\n  try: keep one of the two");
  EXPECT_NO_THROW((void)json_from_text(R"([{"x": 1}, {"x": 2}])", "job.json"));
}

TEST(JsonText, NestingHasAnEnd) {
  EXPECT_NO_THROW((void)json_from_text(std::string(100, '[') + std::string(100, ']'), "job.json"));
  std::string where = "job.json#";
  for (int i = 0; i < 100; ++i) where += "/0";
  EXPECT_EQ(parse_error(std::string(101, '[') + std::string(101, ']')), "nested deeper than 100 levels\n  at: " + where);
}

TEST(JsonFile, AFileThatCannotBeReadIsAnIoError) {
  EXPECT_EQ(thrown<IoError>([] { (void)json_from_file("/nowhere/job.json"); }),
            "cannot read the file: No such file or directory\n  at: /nowhere/job.json");
  EXPECT_EQ(thrown<IoError>([] { (void)json_from_file("/"); }), "cannot read the file: Is a directory\n  at: /");
}

TEST(JsonReader, MissingKeySaysWhatBelongsThere) {
  EXPECT_EQ(error_of("{}", [](JsonReader& r) { (void)r.integer("degree"); }),
            "the key \"degree\" is missing\n  at: job.json\n  try: add \"degree\": an integer");
  EXPECT_EQ(error_of("{\"link\": {}}", [](JsonReader& r) { (void)r.object("link").bytes("memory"); }),
            "the key \"memory\" is missing\n  at: job.json#/link\n  try: add \"memory\": \"80 GiB\"");
}

TEST(JsonReader, MissingKeyPointsAtItsMisspelling) {
  EXPECT_EQ(error_of(R"({"memroy": "80 GiB"})", [](JsonReader& r) { (void)r.bytes("memory"); }),
            "the key \"memory\" is missing\n  at: job.json\n  try: \"memory\" where the file says \"memroy\"");
}

TEST(JsonReader, UnknownKeySaysTheNearestOrAllValidOnes) {
  const auto read = [](JsonReader& r) {
    (void)r.string("name");
    (void)r.string_or("label", "");
    r.finish();
  };
  EXPECT_EQ(error_of(R"({"name": "x", "lable": "y"})", read), "unknown key \"lable\"\n  at: job.json#/lable\n  try: \"label\"");
  EXPECT_EQ(error_of(R"({"name": "x", "a/b~": 1})", read),
            "unknown key \"a/b~\"\n  at: job.json#/a~1b~0\n  try: one of label, name");
}

TEST(JsonReader, ForeignFormatsMayHoldMore) {
  const Json document = json_from_text(R"({"name": "x", "more": 1})", "job.json");
  JsonReader r(document, "job.json");
  EXPECT_EQ(r.string("name"), "x");
  r.ignore_rest();
  EXPECT_NO_THROW(r.finish());
}

TEST(JsonReader, WrongTypesSayWhatWasExpectedAndFound) {
  const std::string text = R"({"text": "x", "number": 1.5, "list": [1, "two"], "object": {}, "yes": true, "nothing": null})";
  EXPECT_EQ(error_of(text, [](JsonReader& r) { (void)r.integer("text"); }),
            "expected an integer, found the text \"x\"\n  at: job.json#/text");
  EXPECT_EQ(error_of(text, [](JsonReader& r) { (void)r.integer("number"); }),
            "expected an integer, found the number 1.5\n  at: job.json#/number");
  EXPECT_EQ(error_of(text, [](JsonReader& r) { (void)r.string("list"); }), "expected a text, found an array\n  at: job.json#/list");
  EXPECT_EQ(error_of(text, [](JsonReader& r) { (void)r.number("yes"); }), "expected a number, found true\n  at: job.json#/yes");
  EXPECT_EQ(error_of(text, [](JsonReader& r) { (void)r.boolean("object"); }),
            "expected true or false, found an object\n  at: job.json#/object");
  EXPECT_EQ(error_of(text, [](JsonReader& r) { (void)r.object("nothing"); }),
            "expected an object, found null\n  at: job.json#/nothing");
  EXPECT_EQ(error_of(text, [](JsonReader& r) { (void)r.array("text"); }),
            "expected an array, found the text \"x\"\n  at: job.json#/text");
  EXPECT_EQ(error_of(text, [](JsonReader& r) { (void)r.integers("list"); }),
            "expected an integer, found the text \"two\"\n  at: job.json#/list/1");
  EXPECT_EQ(error_of(text, [](JsonReader& r) { (void)r.strings("list"); }),
            "expected a text, found the number 1\n  at: job.json#/list/0");
  EXPECT_EQ(error_of("[]", [](JsonReader& r) { (void)r.string("name"); }),
            "expected an object with \"name\", found an array\n  at: job.json");
}

TEST(JsonReader, IntegersHaveBounds) {
  const std::string text = R"({"a": 3, "huge": 9223372036854775808})";
  EXPECT_EQ(error_of(text, [](JsonReader& r) { (void)r.integer("a", 4); }),
            "expected an integer of at least 4, found 3\n  at: job.json#/a");
  EXPECT_EQ(error_of(text, [](JsonReader& r) { (void)r.integer("a", 0, 2); }),
            "expected an integer of at most 2, found 3\n  at: job.json#/a");
  EXPECT_EQ(error_of(text, [](JsonReader& r) { (void)r.integer("huge"); }),
            "expected an integer, found the number 9223372036854775808\n  at: job.json#/huge");
}

TEST(JsonReader, QuantitiesNeedTheirUnitExceptZero) {
  const std::string text = R"({"bare": 80, "wrong": "80 GB/s", "zero": 0, "good": "80 GiB"})";
  EXPECT_EQ(
      error_of(text, [](JsonReader& r) { (void)r.bytes("bare"); }),
      "expected bytes with their unit, found the number 80\n  at: job.json#/bare\n  try: a text such as \"80 GiB\" or \"80 GB\"");
  EXPECT_EQ(error_of(text, [](JsonReader& r) { (void)r.bytes("wrong"); }),
            "expected bytes with their unit, found the text \"80 GB/s\"\n  at: job.json#/wrong\n  try: a text such as \"80 GiB\" "
            "or \"80 GB\"");
  EXPECT_EQ(
      error_of(text, [](JsonReader& r) { (void)r.bytes_per_second("bare"); }),
      "expected bytes per second with their unit, found the number 80\n  at: job.json#/bare\n  try: a text such as \"900 GB/s\"");
  EXPECT_EQ(error_of(text, [](JsonReader& r) { (void)r.flops_per_second("bare"); }),
            "expected operations per second with their unit, found the number 80\n  at: job.json#/bare\n  try: a text such as "
            "\"989 TFLOP/s\"");
  EXPECT_EQ(error_of(text, [](JsonReader& r) { (void)r.seconds("good"); }),
            "expected a duration with its unit, found the text \"80 GiB\"\n  at: job.json#/good\n  try: a text such as \"5 us\"");
  const Json document = json_from_text(text, "job.json");
  JsonReader r(document, "job.json");
  EXPECT_EQ(r.bytes("zero"), 0);
  EXPECT_EQ(r.seconds("zero"), 0);
  EXPECT_EQ(r.bytes_per_second("zero"), 0);
  EXPECT_EQ(r.flops_per_second("zero"), 0);
}

TEST(JsonReader, OptionalMembersTakeTheirDefaultWhenAbsentOrNull) {
  const Json document = json_from_text(R"({"null": null, "n": 2, "d": 0.5, "s": "x", "b": true})", "job.json");
  JsonReader r(document, "job.json");
  EXPECT_EQ(r.integer_or("absent", 7), 7);
  EXPECT_EQ(r.integer_or("null", 7), 7);
  EXPECT_EQ(r.integer_or("n", 7), 2);
  EXPECT_EQ(r.number_or("d", 1), 0.5);
  EXPECT_EQ(r.string_or("s", "y"), "x");
  EXPECT_EQ(r.boolean_or("b", false), true);
  EXPECT_NO_THROW(r.finish());
  EXPECT_FALSE(r.has("null"));
  EXPECT_EQ(error_of(R"({"n": "x"})", [](JsonReader& s) { (void)s.integer_or("n", 7); }),
            "expected an integer, found the text \"x\"\n  at: job.json#/n");
}

TEST(Nearest, IsTheLeastEditWithinAThirdOfTheLongerWord) {
  EXPECT_EQ(nearest("memroy", {"memory", "name"}), "memory");         // one swap
  EXPECT_EQ(nearest("latncy", {"bandwidth", "latency"}), "latency");  // one insertion
  EXPECT_EQ(nearest("xyz", {"memory", "name"}), "");
  EXPECT_EQ(nearest("abc", {}), "");
  EXPECT_EQ(nearest("abcdef", {"abcxyz"}), "");        // 3 of 6 differ
  EXPECT_EQ(nearest("abcdef", {"abcdxy"}), "abcdxy");  // 2 of 6 differ
}

RC_GTEST_PROP(Nearest, AnyWordIsNearestToItself, ()) {
  auto words = *rc::gen::nonEmpty<std::vector<std::string>>();
  const auto chosen = *rc::gen::elementOf(words);
  RC_ASSERT(nearest(chosen, words) == chosen);
}

}  // namespace
}  // namespace shardplan
