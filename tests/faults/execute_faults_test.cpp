// The execute command when something goes wrong: each failure has its message, its exit code, and leaves nothing half written.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "core/write_file.h"
#include "executor/random_init.h"
#include "tests/executor/ranks.h"
#include "tests/executor/small_plans.h"
#include "tests/faults/process.h"

namespace shardplan {
namespace {

const std::string kExecute = std::string(SHARDPLAN_BINARY_DIR) + "/bin/execute";

class ExecuteFaults : public testing::Test {
 protected:
  void SetUp() override {
    write_random_model(model_from_json(config_of({}), "config.json", "small"), folder_ / "model", {});
    std::string rows;
    for (int r = 0; r < 16; ++r) rows += "{\"input_ids\": [1, 2, 3, 4, 5, 6, 7, 8]}\n";
    write_file_whole(data(), rows);
  }
  [[nodiscard]] std::filesystem::path data() const { return folder_ / "data.jsonl"; }
  [[nodiscard]] std::filesystem::path out() const { return folder_ / "run"; }

  // A plan file for so many ranks.
  std::string plan(std::int32_t ranks, double lr = 1e-3, InitPath init = InitPath::Delayed) {
    Plan plan = plan_of({.shard = ranks, .batch = 1, .seq_len = 16, .init = init});
    plan.workload.optimizer.lr = lr;
    const std::filesystem::path file = folder_ / ("plan" + std::to_string(++plans_) + ".json");
    write_file_whole(file, json_from_plan(plan).dump());
    return file.string();
  }
  ProcessRequest request(const std::string& plan_file, std::int64_t steps, const std::string& name = "run") {
    return {.arguments = {kExecute, plan_file, "--model", (folder_ / "model").string(), "--data", data().string(), "--out",
                          (folder_ / name).string(), "--steps", std::to_string(steps)},
            .variables = {{"OMP_NUM_THREADS", "1"}},
            .out = folder_ / (name + ".out"),
            .err = folder_ / (name + ".err"),
            .largest_file_bytes = std::nullopt};
  }
  // The error that stands last on stderr.
  [[nodiscard]] std::string error_of(const std::string& name = "run") const {
    const std::string text = text_of_file(folder_ / (name + ".err"));
    const std::size_t at = text.find("error: ");
    return at == std::string::npos ? text : text.substr(at);
  }
  [[nodiscard]] nlohmann::json run_json() const { return nlohmann::json::parse(text_of_file(out() / "run.json")); }
  // Names of everything in the run folder that looks half done.
  [[nodiscard]] std::string leftovers() const {
    std::string names;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(out())) {
      const std::string name = entry.path().filename().string();
      if (name.find("tmp") != std::string::npos || name.find("partial") != std::string::npos || name == "final")
        names += name + " ";
    }
    return names;
  }
  [[nodiscard]] std::int64_t steps_done() const {
    const std::string text = text_of_file(out() / "metrics.jsonl");
    return std::count(text.begin(), text.end(), '\n');
  }
  TestFolder folder_;
  int plans_ = 0;
};

TEST_F(ExecuteFaults, AGoodRunEndsWellAndTwiceTheSame) {
  Process first(request(plan(2), 4));
  ASSERT_EQ(first.wait(60), 0) << error_of();
  const std::string weights = text_of_file(out() / "final/model.safetensors");
  EXPECT_EQ(run_json()["state"], "done");
  EXPECT_EQ(nlohmann::json::parse(text_of_file(out() / "report.json"))["equal"], true);
  Process second(request(plan(2), 4));  // into the same folder
  ASSERT_EQ(second.wait(60), 0) << error_of();
  EXPECT_EQ(text_of_file(out() / "final/model.safetensors"), weights);
}

TEST_F(ExecuteFaults, AKilledRankIsNamedAndTheOthersEndWithinSeconds) {
  Process process(request(plan(2), 1000000));
  ASSERT_TRUE(process.runs_until(60, [&] { return steps_done() > 2; })) << error_of();
  std::istringstream children(
      text_of_file("/proc/" + std::to_string(process.pid()) + "/task/" + std::to_string(process.pid()) + "/children"));
  pid_t rank0 = 0, rank1 = 0;
  children >> rank0 >> rank1;
  ASSERT_GT(rank1, 0);
  ::kill(rank1, SIGKILL);
  EXPECT_EQ(process.wait(10), 1);
  EXPECT_EQ(error_of(), "error: rank 1 was ended by signal 9 (Killed)\n  at: process " + std::to_string(rank1) +
                            "\n  try: look for the kernel's out-of-memory killer (dmesg), or for who killed it\n");
  EXPECT_EQ(run_json()["state"], "failed");
  EXPECT_EQ(leftovers(), "");
  EXPECT_NE(::kill(rank0, 0), 0) << "no rank is left";
}

TEST_F(ExecuteFaults, ACpuRunLoadsNeitherCudaNorNccl) {
  Process process(request(plan(1), 1000000));
  ASSERT_TRUE(process.runs_until(60, [&] { return steps_done() > 2; })) << error_of();
  const std::string maps = text_of_file("/proc/" + std::to_string(process.pid()) + "/maps");
  EXPECT_NE(maps.find("libtorch_cpu"), std::string::npos);
  for (const char* library : {"libtorch_cuda", "libc10_cuda", "libnccl", "libshardplan_cuda"})
    EXPECT_EQ(maps.find(library), std::string::npos) << library;
}

TEST_F(ExecuteFaults, APlanForDevicesThatAreNotHereIsRefused) {
  const std::string file = plan(1);
  nlohmann::ordered_json document = nlohmann::ordered_json::parse(text_of_file(file));
  document["device"] = "cuda";
  document["kernels"]["attention"] = "cuda_efficient";
  document["hardware"] = "h100-80g";
  write_file_whole(file, document.dump());
  ProcessRequest r = request(file, 2);
  r.variables.emplace_back("CUDA_VISIBLE_DEVICES", "");
  r.variables.emplace_back("SHARDPLAN_CONFIGS", std::string(SHARDPLAN_SOURCE_DIR) + "/configs");
  Process process(r);
  EXPECT_EQ(process.wait(60), 1);
  // With the CUDA part built: no device. Without: no part.
  const std::string error = error_of();
  const bool names_it = error.find(
                            "error: local rank 0 needs a CUDA device of its own, 0 are here\n  at: rank 0\n  try: plan for the "
                            "devices of this machine: plan --hardware local") == 0 ||
                        error.find("error: the CUDA part cannot be loaded: ") == 0;
  EXPECT_TRUE(names_it) << error;
}

TEST_F(ExecuteFaults, AStoppedRankIsMissedAfterTheTimeout) {
  ProcessRequest r = request(plan(2), 1000000);
  r.arguments.insert(r.arguments.end(), {"--timeout", "3"});
  Process process(r);
  ASSERT_TRUE(process.runs_until(60, [&] { return steps_done() > 2; })) << error_of();
  std::istringstream children(
      text_of_file("/proc/" + std::to_string(process.pid()) + "/task/" + std::to_string(process.pid()) + "/children"));
  pid_t rank0 = 0, rank1 = 0;
  children >> rank0 >> rank1;
  ::kill(rank1, SIGSTOP);
  EXPECT_EQ(process.wait(30), 1);
  EXPECT_NE(error_of().find("error: rank 0: "), std::string::npos) << error_of();
  EXPECT_NE(error_of().find("imed out"), std::string::npos) << error_of();
}

TEST_F(ExecuteFaults, ATerminationSignalEndsAfterAStepAndSavesNothing) {
  Process process(request(plan(2), 1000000));
  ASSERT_TRUE(process.runs_until(60, [&] { return steps_done() > 2; })) << error_of();
  ::kill(process.pid(), SIGTERM);
  EXPECT_EQ(process.wait(20), 128 + SIGTERM);
  const nlohmann::json run = run_json();
  EXPECT_EQ(run["state"], "stopped");
  EXPECT_EQ(run["step"], steps_done()) << "every step that ran is in metrics.jsonl";
  EXPECT_EQ(leftovers(), "");
}

TEST_F(ExecuteFaults, AFullDiskAtTheSaveLeavesNothingBehind) {
  ProcessRequest r = request(plan(2), 2);
  r.largest_file_bytes = 100000;  // less than the model's 210 kB, more than any other file
  Process process(r);
  EXPECT_EQ(process.wait(60), 1);
  EXPECT_EQ(error_of(), "error: rank 0: cannot write file: File too large\n  at: " +
                            (out() / "final.tmp/model.safetensors").string() + "\n  try: name another --out\n");
  EXPECT_EQ(leftovers(), "");
  EXPECT_EQ(run_json()["state"], "failed");
}

TEST_F(ExecuteFaults, AFolderThatCannotBeMadeIsRefusedBeforeTraining) {
  write_file_whole(folder_ / "file", "x");
  ProcessRequest r = request(plan(1), 2);
  r.arguments[7] = (folder_ / "file/run").string();
  Process process(r);
  EXPECT_EQ(process.wait(60), 1);
  EXPECT_EQ(error_of(), "error: cannot create the run folder: Not a directory\n  at: " + (folder_ / "file/run").string() +
                            "\n  try: name another --out\n");
}

TEST_F(ExecuteFaults, RanksThatDisagreeAboutThePlanAreRefusedBeforeDataMoves) {
  const std::string port = std::to_string(20000 + ::getpid() % 20000);
  std::vector<std::unique_ptr<Process>> ranks;
  for (int r = 0; r < 2; ++r) {
    ProcessRequest q = request(plan(2, r == 0 ? 1e-3 : 2e-3), 2, "rank" + std::to_string(r));
    for (const auto& [name, value] : std::initializer_list<std::pair<const char*, std::string>>{{"RANK", std::to_string(r)},
                                                                                                {"WORLD_SIZE", "2"},
                                                                                                {"LOCAL_RANK", std::to_string(r)},
                                                                                                {"MASTER_ADDR", "127.0.0.1"},
                                                                                                {"MASTER_PORT", port}}) {
      q.variables.emplace_back(name, value);
    }
    ranks.push_back(std::make_unique<Process>(q));
  }
  for (int r = 0; r < 2; ++r) {
    EXPECT_EQ(ranks[static_cast<std::size_t>(r)]->wait(60), 4);
    const std::string error = error_of("rank" + std::to_string(r));
    EXPECT_EQ(error.find("error: ranks disagree about the plan: rank 0 has "), 0U) << error;
    EXPECT_NE(error.find("\n  at: before any data moved\n  try: give all ranks the same plan file and the same flags\n"),
              std::string::npos)
        << error;
    EXPECT_FALSE(std::filesystem::exists(folder_ / ("rank" + std::to_string(r)) / "run.json"));
  }
}

TEST_F(ExecuteFaults, AWorldOfAnotherSizeIsRefusedAndDescribedForTorchrun) {
  ProcessRequest r = request(plan(2), 2);
  const std::filesystem::path error_file = folder_ / "error.json";
  for (const auto& [name, value] : std::initializer_list<std::pair<const char*, const char*>>{
           {"RANK", "0"}, {"WORLD_SIZE", "3"}, {"LOCAL_RANK", "0"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29999"}}) {
    r.variables.emplace_back(name, value);
  }
  Process process(r);
  EXPECT_EQ(process.wait(60), 2);
  EXPECT_EQ(error_of(),
            "error: the plan is for 2 ranks, torchrun started 3\n  at: environment of torchrun\n  try: start 2 ranks, or plan with "
            "--gpus 3\n");
}

TEST_F(ExecuteFaults, AFailureIsDescribedForTorchrun) {
  std::filesystem::remove(folder_ / "model/model.safetensors");
  ProcessRequest r = request(plan(1), 2);
  for (const auto& [name, value] :
       std::initializer_list<std::pair<const char*, std::string>>{{"RANK", "0"},
                                                                  {"WORLD_SIZE", "1"},
                                                                  {"LOCAL_RANK", "0"},
                                                                  {"MASTER_ADDR", "127.0.0.1"},
                                                                  {"MASTER_PORT", "29999"},
                                                                  {"TORCHELASTIC_ERROR_FILE", (folder_ / "error.json").string()}}) {
    r.variables.emplace_back(name, value);
  }
  Process process(r);
  EXPECT_EQ(process.wait(60), 4);
  const auto document = nlohmann::json::parse(text_of_file(folder_ / "error.json"));
  EXPECT_EQ(document["message"]["message"].get<std::string>().find("no model.safetensors and no model.safetensors.index.json"), 0U);
}

TEST_F(ExecuteFaults, ABadCheckpointOnRankZeroIsTheRootCause) {
  std::filesystem::resize_file(folder_ / "model/model.safetensors",
                               std::filesystem::file_size(folder_ / "model/model.safetensors") - 10);
  Process process(request(plan(2), 2));
  EXPECT_EQ(process.wait(60), 4);
  EXPECT_EQ(error_of().find("error: rank 0: safetensors file is truncated: data ends at byte "), 0U) << error_of();
  EXPECT_NE(error_of().find("\n  try: the copy or download did not finish: fetch the file again\n"), std::string::npos)
      << error_of();
}

TEST_F(ExecuteFaults, DataBeyondTheVocabularyIsNamedByLineAndToken) {
  write_file_whole(data(), "{\"input_ids\": [1, 2]}\n{\"input_ids\": [1, 131]}\n");
  Process process(request(plan(1), 2));
  EXPECT_EQ(process.wait(60), 4);
  EXPECT_EQ(error_of(), "error: token id 131 is outside the vocabulary of 131\n  at: " + data().string() +
                            ":2, token 1\n  try: encode the text with the tokenizer of this model\n");
}

TEST_F(ExecuteFaults, APlanForAnotherModelIsRefused) {
  nlohmann::ordered_json config = config_of({});
  config["rope_theta"] = 500000.0;
  write_file_whole(folder_ / "model/config.json", config.dump());
  Process process(request(plan(1), 2));
  EXPECT_EQ(process.wait(60), 4);
  EXPECT_EQ(error_of(), "error: the plan was made for rope_theta = 10000.0, the model has 500000.0\n  at: " +
                            (folder_ / "model/config.json").string() +
                            "#/rope_theta\n  try: plan again for this model, or name the directory of the planned one\n");
}

TEST_F(ExecuteFaults, MissingFlagsAreNamed) {
  Process process({.arguments = {kExecute, plan(1)},
                   .variables = {},
                   .out = folder_ / "run.out",
                   .err = folder_ / "run.err",
                   .largest_file_bytes = std::nullopt});
  EXPECT_EQ(process.wait(60), 2);
  EXPECT_EQ(error_of(),
            "error: the model directory is missing\n  at: --model\n  try: execute plan.json --model DIR --data FILE --out DIR\n");
}

}  // namespace
}  // namespace shardplan
