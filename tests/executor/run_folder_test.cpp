#include "executor/run_folder.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/json_files.h"
#include "core/json_reader.h"
#include "executor/metrics_line.h"
#include "tests/executor/ranks.h"

namespace shardplan {
namespace {

TEST(MetricsLine, HasTheShapeThatPeopleKnow) {
  // 3 of 80 GiB; 20 of 100 TFLOP/s.
  const MetricsLine line{.step = 7,
                         .loss = 2.5,
                         .grad_norm = 1.25,
                         .memory_bytes = 3LL << 30,
                         .capacity_bytes = 80LL << 30,
                         .predicted_bytes = 3LL << 30,
                         .tokens_per_second = 12345.4,
                         .flops_per_second = 20e12,
                         .peak_flops_per_second = 100e12};
  EXPECT_EQ(
      text_from_metrics(line),
      "step: 7  loss: 2.50000  grad_norm: 1.2500  memory: 3.00GiB(3.75%)  tps: 12,345  tflops: 20.00  mfu: 20.00%  pred: 3.00GiB");
}

TEST(MetricsLine, WhatIsNotKnownIsNotInvented) {
  EXPECT_EQ(text_from_metrics({.step = 1}),
            "step: 1  loss: 0.00000  grad_norm: 0.0000  memory: 0.00GiB(n/a)  tps: 0  tflops: 0.00  mfu: n/a  pred: 0.00GiB");
}

nlohmann::ordered_json status_of(const std::filesystem::path& folder) { return json_from_file(folder / "run.json"); }

TEST(RunFolder, StatusIsReplacedWholeAndMetricsGrowByFlushedLines) {
  const TestFolder folder;
  RunFolder run(folder / "run");
  run.set_status({.plan_hash = "abc", .phase = Phase::Step1, .step = 0, .steps = 9, .process_id = 4, .ranks = 2});
  EXPECT_EQ(status_of(folder / "run").dump(),
            R"({"schema_version":1,"kind":"shardplan.run","plan_hash":"abc","state":"running","phase":"step1",)"
            R"("step":0,"steps":9,"process_id":4,"ranks":2})");
  run.add_metrics({.step = 1,
                   .loss = 2.5,
                   .grad_norm = 1,
                   .learning_rate = 0.5,
                   .targets = 3,
                   .seconds = 2,
                   .cpu_seconds = 1,
                   .tokens_per_second_per_gpu = 8,
                   .peak_requested_bytes = 100});
  run.add_evaluation(1, 0.25, 6);
  // Read while the folder is open: nothing waits in a buffer.
  EXPECT_EQ(
      text_of_file(folder / "run/metrics.jsonl"),
      R"({"step":1,"loss":2.5,"grad_norm":1.0,"learning_rate":0.5,"tokens_per_second_per_gpu":8.0,"peak_requested_bytes":100,)"
      R"("peak_allocated_bytes":null,"peak_reserved_bytes":null,"targets":3,"seconds":2.0,"cpu_seconds":1.0})"
      "\n"
      R"({"event":"eval","step":1,"loss":0.25,"targets":6})"
      "\n");
}

TEST(RunFolder, AFailureIsNotedOnARunThatWasRunning) {
  const TestFolder folder;
  note_failure(folder.path(), "nothing was begun");
  EXPECT_FALSE(std::filesystem::exists(folder / "run.json"));
  RunFolder run(folder.path());
  run.set_status({});
  note_failure(folder.path(), "it broke");
  EXPECT_EQ(status_of(folder.path())["state"], "failed");
  EXPECT_EQ(status_of(folder.path())["message"], "it broke");
  run.set_status({.state = "done"});
  note_failure(folder.path(), "too late");
  EXPECT_EQ(status_of(folder.path())["state"], "done");
}

}  // namespace
}  // namespace shardplan
