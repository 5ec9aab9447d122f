#include "simulator/trace_writers.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "simulator/simulate.h"
#include "tests/core/random_program.h"
#include "tests/simulator/hand_program.h"

namespace shardplan {
namespace {

using Json = nlohmann::ordered_json;

TEST(PerfettoTrace, OneTrackAStreamOneCounterACategory) {
  StepProgram program = empty_program();
  program.streams = {StreamKind::Compute};
  const BufferId weight = buffer(program, 100, MemoryCategory::ShardedParam);
  const BufferId output = buffer(program, 10, MemoryCategory::Activation);
  program.resident = {weight};
  const TaskId task = compute(program, 1234567);
  program.tasks[task.at()].effects = {allocate(output)};
  program.tasks[task.at()].label = "forward of \"a\"";
  EXPECT_EQ(perfetto_trace({simulate(program, round_machine())}), R"({"displayTimeUnit":"ns","traceEvents":[
{"ph":"M","pid":1,"name":"process_name","args":{"name":"step2 simulated rank 0"}},
{"ph":"M","pid":1,"name":"process_sort_index","args":{"sort_index":1}},
{"ph":"M","pid":1,"tid":0,"name":"thread_name","args":{"name":"compute"}},
{"ph":"M","pid":1,"tid":0,"name":"thread_sort_index","args":{"sort_index":0}},
{"ph":"X","pid":1,"tid":0,"ts":0.000,"dur":1234.567,"name":"forward of \"a\"","cat":"forward","args":{"task":0,"micro_step":0,"peak_requested_bytes":110,"after_requested_bytes":110}},
{"ph":"C","pid":1,"ts":0.000,"name":"Sharded Param","args":{"bytes":100}},
{"ph":"C","pid":1,"ts":0.000,"name":"device total","args":{"bytes":100}},
{"ph":"C","pid":1,"ts":0.000,"name":"Activation","args":{"bytes":10}},
{"ph":"C","pid":1,"ts":0.000,"name":"device total","args":{"bytes":110}}
]}
)");
}

RC_GTEST_PROP(PerfettoTrace, IsJsonWithEveryTaskAndEndsAtTheLastLevels, ()) {
  const StepProgram program = *random_program();
  const Timeline timeline = simulate(program, round_machine());
  const Json trace = Json::parse(perfetto_trace({timeline, timeline}));
  std::size_t num_tasks = 0;
  std::map<std::string, std::int64_t> last;
  for (const Json& event : trace.at("traceEvents")) {
    if (event.at("pid") != 2) continue;
    if (event.at("ph") == "X") ++num_tasks;
    if (event.at("ph") == "C") last[event.at("name").get<std::string>()] = event.at("args").at("bytes").get<std::int64_t>();
  }
  RC_ASSERT(num_tasks == program.tasks.size());
  RC_ASSERT(last.at("device total") ==
            (timeline.tasks.empty() ? timeline.at_start.total() : timeline.tasks.back().after_requested_bytes));
  std::int64_t by_category = 0;
  for (const auto& [name, bytes] : last) {
    if (name != "device total" && !name.ends_with(" (host)")) by_category += bytes;
  }
  RC_ASSERT(by_category == last.at("device total"));
}

}  // namespace
}  // namespace shardplan
