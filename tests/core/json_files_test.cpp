#include "core/json_files.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json_reader.h"
#include "tests/core/random_program.h"
#include "tests/core/thrown.h"

namespace shardplan {
namespace {

using Json = nlohmann::ordered_json;

rc::Gen<Timeline> random_timeline() {
  return rc::gen::exec([] {
    const auto bytes = [] { return *rc::gen::inRange<std::int64_t>(0, INT64_MAX / 2); };
    const auto time = [] { return std::chrono::nanoseconds(*rc::gen::inRange<std::int64_t>(0, 1'000'000'000'000)); };
    Timeline timeline;
    timeline.source = detail::any_of<TimelineSource>(2);
    timeline.phase = detail::any_of<Phase>(5);
    timeline.rank = *rc::gen::inRange(0, 1000);
    timeline.streams = {StreamKind::Compute, StreamKind::Copy};
    for (int i = *rc::gen::inRange(0, 5); i > 0; --i) {
      const std::chrono::nanoseconds start = time();
      timeline.tasks.push_back({.task = TaskId(*rc::gen::inRange<std::int64_t>(0, 100)),
                                .kind = detail::any_of<TaskKind>(kNumTaskKinds),
                                .stream = StreamId(*rc::gen::inRange<std::int64_t>(0, 2)),
                                .micro_step = *rc::gen::inRange(0, 9),
                                .start = start,
                                .end = start + time(),
                                .peak_requested_bytes = bytes(),
                                .after_requested_bytes = bytes(),
                                .label = "task"});
    }
    for (int i = *rc::gen::inRange(0, 5); i > 0; --i)
      timeline.memory.push_back({.at = time(),
                                 .category = detail::any_of<MemoryCategory>(kNumMemoryCategories),
                                 .place = detail::any_of<Place>(2),
                                 .delta_bytes = bytes() - bytes(),
                                 .task = *rc::gen::inRange(0, 2) == 0 ? TaskId() : TaskId(3)});
    for (int i = *rc::gen::inRange(0, 3); i > 0; --i)
      timeline.collectives.push_back({.kind = detail::any_of<CollectiveKind>(4),
                                      .axis = "shard",
                                      .calls = *rc::gen::inRange<std::int64_t>(1, 9),
                                      .bytes_per_rank = bytes(),
                                      .busy = time(),
                                      .exposed = time()});
    timeline.at_start[detail::any_of<MemoryCategory>(kNumMemoryCategories)] = bytes();
    timeline.at_peak[detail::any_of<MemoryCategory>(kNumMemoryCategories)] = bytes();
    timeline.peak_requested_bytes = bytes();
    timeline.peak_task = *rc::gen::inRange(0, 2) == 0 ? TaskId() : TaskId(3);
    timeline.host_peak_bytes = bytes();
    timeline.duration = time();
    return timeline;
  });
}

RC_GTEST_PROP(ProgramFile, WritingThenReadingGivesAnEqualValue, ()) {
  const StepProgram program = *random_program();
  const std::string text = json_from_program(program).dump();
  const StepProgram read = program_from_json(json_from_text(text, "program.json"), "program.json");
  RC_ASSERT(read == program);
  RC_ASSERT(json_from_program(read).dump() == text);
}

RC_GTEST_PROP(TimelineFile, WritingThenReadingGivesAnEqualValue, ()) {
  const Timeline timeline = *random_timeline();
  const std::string text = json_from_timeline(timeline).dump();
  const Timeline read = timeline_from_json(json_from_text(text, "timeline.json"), "timeline.json");
  RC_ASSERT(read == timeline);
  RC_ASSERT(json_from_timeline(read).dump() == text);
}

// The example of a document: what stands between its ```json and ``` lines.
std::string example_of(const std::string& document) {
  std::ifstream stream(std::string(SHARDPLAN_SOURCE_DIR) + "/docs/" + document);
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  const std::string open = "```json\n";
  const std::size_t start = text.find(open);
  return start == std::string::npos ? ""
                                    : text.substr(start + open.size(), text.find("```", start + open.size()) - start - open.size());
}

std::string program_error(const std::string& pointer, const Json& value) {
  Json document = json_from_text(example_of("step_program.md"), "program.json");
  document[Json::json_pointer(pointer)] = value;
  return thrown<ConfigError>([&] { (void)program_from_json(document, "program.json"); });
}

std::string timeline_error(const std::string& pointer, const Json& value) {
  Json document = json_from_text(example_of("timeline.md"), "timeline.json");
  document[Json::json_pointer(pointer)] = value;
  return thrown<ConfigError>([&] { (void)timeline_from_json(document, "timeline.json"); });
}

TEST(ProgramFile, ReadsWhatTheDocumentShows) {
  const Json document = json_from_text(example_of("step_program.md"), "program.json");
  const StepProgram program = program_from_json(document, "program.json");
  EXPECT_EQ(json_from_program(program), document);
  EXPECT_EQ(program.tasks[0].collective->bytes, 16);
  EXPECT_FALSE(program.buffers[0].pool.is_set());
}

TEST(TimelineFile, ReadsWhatTheDocumentShows) {
  const Json document = json_from_text(example_of("timeline.md"), "timeline.json");
  EXPECT_EQ(json_from_timeline(timeline_from_json(document, "timeline.json")), document);
}

TEST(ProgramFile, MalformedOnesAreRefusedWithTheirPlace) {
  EXPECT_EQ(program_error("/kind", "shardplan.plan"),
            "expected \"shardplan.step_program\", found \"shardplan.plan\"\n  at: program.json#/kind");
  EXPECT_EQ(
      program_error("/schema_version", 2),
      "this program reads version 1 of \"shardplan.step_program\", the file has version 2\n  at: program.json#/schema_version");
  EXPECT_EQ(
      program_error("/phase", "step3"),
      "\"step3\" is no word known here\n  at: program.json#/phase\n  try: docs/step_program.md and docs/timeline.md list them");
  EXPECT_EQ(program_error("/streams/1", "network"),
            "\"network\" is no stream\n  at: program.json#/streams/1\n  try: compute, gather, reduce or copy");
  EXPECT_EQ(program_error("/resident/0", 2), "2 is no position in a table of 2\n  at: program.json#/resident/0");
  EXPECT_EQ(program_error("/resident", Json::parse("[1, 0]")),
            "positions stand in ascending order, each once\n  at: program.json#/resident/1");
  EXPECT_EQ(program_error("/tasks/0/waits_on", Json::parse("[0]")),
            "0 is no position in a table of 0\n  at: program.json#/tasks/0/waits_on/0");
  EXPECT_EQ(program_error("/tasks/0/stream", 2), "expected an integer of at most 1, found 2\n  at: program.json#/tasks/0/stream");
  EXPECT_EQ(program_error("/tasks/0/effects/0/buffer", -1),
            "expected an integer of at least 0, found -1\n  at: program.json#/tasks/0/effects/0/buffer");
  EXPECT_EQ(program_error("/tasks/0/efects", 1), "unknown key \"efects\"\n  at: program.json#/tasks/0/efects\n  try: \"effects\"");
  EXPECT_EQ(program_error("/buffers/0/bytes", "8 B"),
            "expected an integer, found the text \"8 B\"\n  at: program.json#/buffers/0/bytes");
  EXPECT_EQ(program_error("/tasks/1/effects/0/buffer", 0).substr(0, 8), "no error");  // the resident one may be freed
  EXPECT_EQ(program_error("/tasks/0/effects/0/buffer", 0),
            "the program breaks a law: broken law: a buffer is allocated once: weight in gather\n  at: program.json");
}

TEST(TimelineFile, MalformedOnesAreRefusedWithTheirPlace) {
  EXPECT_EQ(timeline_error("/at_peak_bytes/Params", 1),
            "\"Params\" is no memory category\n  at: timeline.json#/at_peak_bytes/Params\n  try: docs/timeline.md lists them");
  EXPECT_EQ(timeline_error("/tasks/0/end_nanoseconds", -1),
            "expected an integer of at least 0, found -1\n  at: timeline.json#/tasks/0/end_nanoseconds");
  EXPECT_EQ(timeline_error("/tasks/0/stream", 1), "expected an integer of at most 0, found 1\n  at: timeline.json#/tasks/0/stream");
  EXPECT_EQ(timeline_error("/memory/0/place", "disk"),
            "\"disk\" is no word known here\n  at: timeline.json#/memory/0/place\n  try: docs/step_program.md and docs/timeline.md "
            "list them");
  EXPECT_EQ(timeline_error("/source", nullptr), "expected a text, found null\n  at: timeline.json#/source");
}

TEST(CategoriesFile, LeavesOutZeroes) {
  CategoryBytes bytes;
  bytes[MemoryCategory::Nccl] = 2;
  bytes[MemoryCategory::Activation] = 1;
  EXPECT_EQ(json_from_categories(bytes).dump(), R"({"Activation":1,"NCCL":2})");
  EXPECT_EQ(json_from_categories({}).dump(), "{}");
}

}  // namespace
}  // namespace shardplan
