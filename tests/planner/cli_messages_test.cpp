// Every way to call `plan` wrongly, with its whole message.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "core/error.h"
#include "planner/command/config_folder.h"
#include "planner/command/job_file.h"
#include "planner/command/request_from_flags.h"

namespace shardplan {
namespace {

const std::filesystem::path kConfigs = std::filesystem::path(SHARDPLAN_SOURCE_DIR) / "configs";

PlanRequest request_of(const std::vector<std::string>& arguments) {
  CommandLine line = parse_command_line(arguments);
  if (const auto job = line.value("workload")) add_job_file(*job, line);
  return request_from_flags(line, kConfigs);
}

// Kind of error and message; "accepted" when there is none.
std::string answer_to(const std::vector<std::string>& arguments) {
  try {
    (void)request_of(arguments);
    return "accepted";
  } catch (const Error& error) {
    return fmt::format("{}: {}", static_cast<int>(error.code()), error.what());
  }
}

std::vector<std::string> llama(std::vector<std::string> more) {
  more.insert(more.begin(), {"--model", "llama3-8b", "--gpus", "4"});
  return more;
}

TEST(Flags, UnknownOnesAreAnsweredWithTheNearest) {
  EXPECT_EQ(answer_to(llama({"--seq-length", "9"})), "2: unknown flag --seq-length\n  try: --seq-len");
  EXPECT_EQ(answer_to(llama({"--recompte", "full"})), "2: unknown flag --recompte\n  try: --recompute");
  EXPECT_EQ(answer_to(llama({"--qqqqqqqqqq"})), "2: unknown flag --qqqqqqqqqq\n  try: plan --help lists the flags");
}

// What is not there is unknown, and what comes nearest to it is named: nothing is accepted and then ignored.
TEST(Flags, ThoseOfOtherToolsAreAnsweredWithOurs) {
  EXPECT_EQ(answer_to(llama({"--gradient-checkpointing"})), "2: unknown flag --gradient-checkpointing\n  try: --recompute full");
  EXPECT_EQ(answer_to(llama({"--load_in_4bit"})),
            "2: unknown flag --load_in_4bit\n  try: --stored-dtype bf16 is the smallest stored form");
  EXPECT_EQ(answer_to(llama({"--peft", "lora:r=16"})),
            "2: unknown flag --peft\n  try: --train head, --train last:N or --train regex:RE trains a part of the model");
  EXPECT_EQ(answer_to(llama({"--tp", "2"})),
            "2: unknown flag --tp\n  try: --shard-degree and --replicate-degree are the mesh axes");
  EXPECT_EQ(answer_to({"sweep", "llama3-8b"}),
            "2: 'sweep' is no verb of plan\n  try: plan MODEL --gpus N --top K shows more plans");
}

TEST(Flags, AliasesMeanOurFlags) {
  const PlanRequest ours =
      request_of({"llama3-8b", "--gpus", "8", "--seq-len", "1024", "--micro-batch", "2", "--memory-limit", "60GiB"});
  const PlanRequest theirs = request_of({"--model=Llama-3-8B", "--num_processes", "8", "--max_seq_len=1024",
                                         "--per-device-train-batch-size", "2", "--max-memory", "60 GiB"});
  EXPECT_EQ(theirs.gpus, ours.gpus);
  EXPECT_EQ(theirs.workload, ours.workload);
  EXPECT_EQ(theirs.knobs, ours.knobs);
  EXPECT_EQ(theirs.memory_limit_bytes, std::int64_t{60} << 30);
  EXPECT_EQ(theirs.model.name, ours.model.name);
}

TEST(Flags, MalformedOnes) {
  EXPECT_EQ(answer_to({}),
            "2: no model is given\n  try: plan --model llama3-8b --gpus 4; plan models lists the models known by name");
  EXPECT_EQ(answer_to({"llama3-8b", "--gpus"}), "2: --gpus needs a value\n  try: --gpus N");
  EXPECT_EQ(answer_to({"llama3-8b", "--gpus", "4", "--gpus", "2"}), "2: --gpus is given 2 times\n  try: give it once");
  EXPECT_EQ(answer_to({"llama3-8b", "--json=yes"}), "2: --json is a switch and takes no value, 'yes' was given\n  try: --json");
  EXPECT_EQ(answer_to({"llama3-8b", "qwen3-8b"}),
            "2: one model at a time, found 'llama3-8b' and 'qwen3-8b'\n  try: values of flags with blanks need quotes");
  EXPECT_EQ(answer_to({"llama3-8b", "--model", "qwen3-8b"}),
            "2: two models: 'llama3-8b' and --model qwen3-8b\n  try: give one of them");
  EXPECT_EQ(answer_to({"simulate", "p.json", "--seq-len", "4"}),
            "2: plan simulate takes no flag --seq-len\n  try: --seq-len belongs to plan, plan explain");
}

TEST(Values, ThatAreNone) {
  EXPECT_EQ(answer_to(llama({"--seq-len", "long"})), "2: expected a whole number, found 'long'\n  at: --seq-len");
  EXPECT_EQ(answer_to(llama({"--seq-len", "2048.5"})), "2: expected a whole number, found '2048.5'\n  at: --seq-len");
  EXPECT_EQ(answer_to(llama({"--seq-len", "0"})), "2: expected 1 to 16777216, found 0\n  at: --seq-len");
  EXPECT_EQ(answer_to(llama({"--micro-batch", "-1"})), "2: expected at least 1, found -1\n  at: --micro-batch");
  EXPECT_EQ(answer_to(llama({"--micro-batch", "2147483648"})),
            "2: expected at most 2147483647, found 2147483648\n  at: --micro-batch");
  const std::string endless(5000, 'a');
  EXPECT_TRUE(answer_to(llama({"--hardware", endless})).starts_with("2: no hardware is called \"" + endless + "\""));
  EXPECT_EQ(answer_to(llama({"--prefetch", "3"})), "2: expected 0 to 2, found 3\n  at: --prefetch");
  EXPECT_EQ(answer_to(llama({"--lr", "fast"})), "2: expected a number, found 'fast'\n  at: --lr");
  EXPECT_EQ(answer_to(llama({"--lr", "nan"})), "2: expected a number, found 'nan'\n  at: --lr");
  EXPECT_EQ(answer_to(llama({"--betas", "0.9"})), "2: expected two numbers, found '0.9'\n  at: --betas\n  try: --betas 0.9,0.999");
  EXPECT_EQ(answer_to(llama({"--betas", "0.9,1.0"})), "2: expected a number from 0 to below 1, found 1.0\n  at: --betas");
  EXPECT_EQ(answer_to(llama({"--memory-limit", "40"})),
            "2: expected bytes with their unit, found '40'\n  at: --memory-limit\n  try: \"40 GiB\" (2^30) or \"40 GB\" (10^9)");
  EXPECT_EQ(answer_to(llama({"--compute-dtype", "bf61"})),
            "2: unknown word 'bf61'\n  at: --compute-dtype\n  try: bf16 (words: fp32, bf16)");
  EXPECT_EQ(answer_to(llama({"--objective", "speed"})), "2: unknown word 'speed'\n  at: --objective\n  try: throughput, memory");
  EXPECT_EQ(answer_to(llama({"--units", "layers"})),
            "2: unknown word 'layers'\n  at: --units\n  try: blocks, blocks:K, halves, whole");
  EXPECT_EQ(answer_to(llama({"--recompute", "keep:linear+silu"})), "accepted");
  EXPECT_EQ(answer_to(llama({"--recompute", "keep:safe_softmax"})),
            "2: no layer of llama-3-8b has the op safe_softmax\n  at: --recompute\n  try: keep:OP+OP with add, add_scalar, "
            "attention_flash, cast, cat, "
            "linear, mean_last, mul, neg, pow_scalar, rsqrt, silu");
  EXPECT_EQ(answer_to(llama({"--recompute", "keep:Magic"})),
            "2: unknown word 'keep:Magic'\n  at: --recompute\n  try: none, full, blocks:K (K >= 2), halves:attention, halves:mlp, "
            "keep:OP+OP with ops such as "
            "attention_flash, linear, silu");
  EXPECT_EQ(answer_to(llama({"--root", "both"})), "2: unknown word 'both'\n  at: --root\n  try: joint, split");
}

TEST(Values, ThatContradictEachOther) {
  EXPECT_EQ(answer_to(llama({"--shard-degree", "3"})), "2: 3 does not divide the 4 GPUs of the job\n  at: --shard-degree");
  EXPECT_EQ(answer_to(llama({"--shard-degree", "4", "--replicate-degree", "2"})),
            "2: shard degree 4 x replicate degree 2 is 8, the job has 4 GPUs\n  at: --replicate-degree\n  try: --replicate-degree "
            "1, or leave one of them to the search");
  EXPECT_EQ(answer_to({"llama3-8b", "--gpus", "16", "--nodes", "1"}),
            "2: 16 GPUs on 1 node, but a node of h100-80g has 8\n  at: --nodes\n  try: --nodes 2");
  EXPECT_EQ(answer_to(llama({"--nodes", "8"})), "2: 8 nodes for 4 GPUs\n  at: --nodes\n  try: --nodes 4 or fewer");
  EXPECT_EQ(answer_to(llama({"--nodes", "3"})),
            "2: 4 GPUs do not spread evenly over 3 nodes\n  at: --nodes\n  try: as many GPUs on every node");
  EXPECT_EQ(answer_to(llama({"--units", "whole", "--root", "split"})),
            "2: --units whole puts everything in one unit; --root would mean nothing\n  at: --root\n  try: leave --root out, or "
            "--units blocks");
  EXPECT_EQ(answer_to(llama({"--units", "blocks:33"})),
            "2: 33 blocks in a unit, the model has 32\n  at: --units\n  try: --units whole");
  EXPECT_EQ(answer_to(llama({"--accum-sync", "last"})),
            "2: gradients are reduced once in a step of one micro-step; --accum-sync would mean nothing\n  at: --accum-sync\n  "
            "try: --grad-accum N or --global-batch G beside it");
  EXPECT_EQ(answer_to(llama({"--global-batch", "30"})),
            "2: 30 sequences do not divide into 4 ranks\n  at: --global-batch\n  try: --global-batch 28");
  EXPECT_EQ(answer_to(llama({"--global-batch", "32", "--micro-batch", "3"})),
            "2: 32 sequences do not divide into 4 ranks x 3 sequences\n  at: --global-batch\n  try: --global-batch 24");
  EXPECT_EQ(answer_to(llama({"--seq-len", "9000"})),
            "2: 9000 tokens, but llama-3-8b has positions for 8192\n  at: --seq-len\n  try: --seq-len 8192 or less");
  EXPECT_EQ(answer_to(llama({"--gpu", "h100-80g", "--hardware", "local-cpu"})),
            "2: --gpu and --hardware both name the machine\n  at: --hardware\n  try: give one of them");
}

struct TemporaryFile {
  std::filesystem::path path = std::filesystem::temp_directory_path() / "shardplan_cli_job.json";
  explicit TemporaryFile(const std::string& content) { std::ofstream(path) << content; }
  ~TemporaryFile() { std::filesystem::remove(path); }
};

std::string answer_to_job(const std::string& job, std::vector<std::string> more = {}) {
  const TemporaryFile file(job);
  more.insert(more.begin(), {"--workload", file.path.string()});
  std::string answer = answer_to(more);
  for (std::size_t at; (at = answer.find(file.path.string())) != std::string::npos;)
    answer.replace(at, file.path.string().size(), "JOB");
  return answer;
}

TEST(JobFiles, AreStrict) {
  const std::string head = R"({"schema_version": 1, "kind": "shardplan.job", "model": "llama3-8b", "gpus": 4)";
  EXPECT_EQ(answer_to_job(head + "}"), "accepted");
  EXPECT_EQ(answer_to_job(head + R"(, "seq_len": 1024.5})"), "4: expected a whole number, found '1024.5'\n  at: JOB#/seq_len");
  EXPECT_EQ(answer_to_job(head + R"(, "train": [1, {}]})"),
            "4: expected a text or a list of texts, found [1,{}]\n  at: JOB#/train");
  EXPECT_EQ(answer_to_job(R"({"schema_version": 2, "kind": "shardplan.job"})"),
            "4: job files of version 2 are not known\n  at: JOB#/schema_version\n  try: version 1");
  EXPECT_EQ(answer_to_job(R"({"schema_version": 1, "kind": "shardplan.plan"})"),
            "4: expected \"shardplan.job\", found \"shardplan.plan\"\n  at: JOB#/kind");
  EXPECT_NE(answer_to_job(head + R"(, "seq_lenght": 5})").find("seq_len"), std::string::npos);
}

TEST(JobFiles, FlagsBesideThemWin) {
  const TemporaryFile file(
      R"({"schema_version": 1, "kind": "shardplan.job", "model": "llama3-8b", "gpus": 4, "seq_len": 512, "train": ["last:2", "head"], "pack": true})");
  const PlanRequest request = request_of({"--workload", file.path.string(), "--seq-len", "256"});
  EXPECT_EQ(request.workload.seq_len, 256);
  EXPECT_EQ(request.gpus, 4);
  EXPECT_TRUE(request.workload.pack);
  EXPECT_EQ(request.workload.train, (std::vector<std::string>{"last:2", "head"}));
}

TEST(Train, WordsJoinedByPlusAreSplitAndExpressionsAreNot) {
  EXPECT_EQ(request_of(llama({"--train", "head+norms", "--train", "regex:q_proj+"})).workload.train,
            (std::vector<std::string>{"head", "norms", "regex:q_proj+"}));
}

TEST(Configs, AreSearchedInAFixedOrderAndNamedOnesAreNeverPassedOver) {
  EXPECT_EQ(config_folder(kConfigs.string(), "/nowhere", "/bin/plan"), kConfigs);
  EXPECT_EQ(config_folder(std::nullopt, kConfigs.c_str(), "/bin/plan"), kConfigs);
  const std::filesystem::path program = std::filesystem::path(SHARDPLAN_SOURCE_DIR) / "build/release/bin/plan";
  EXPECT_TRUE(std::filesystem::equivalent(config_folder(std::nullopt, nullptr, program), kConfigs));
  try {
    (void)config_folder(std::nullopt, nullptr, "/nowhere/bin/plan");
    FAIL();
  } catch (const IoError& error) {
    EXPECT_STREQ(error.what(),
                 "the folder with models and hardware is not found\n  at: /nowhere/share/shardplan/configs, /nowhere/configs, "
                 "/configs\n  try: --configs DIR, or "
                 "SHARDPLAN_CONFIGS in the environment");
  }
  try {
    (void)config_folder("/nowhere", nullptr, "/bin/plan");
    FAIL();
  } catch (const IoError& error) {
    EXPECT_STREQ(error.what(),
                 "no models/ and hardware/ in '/nowhere'\n  at: --configs\n  try: name the configs folder of the project or of an "
                 "installation");
  }
}

// The list of flags is a promise: it grows on purpose, with this line.
TEST(Flags, AreThese) {
  std::string names;
  for (const FlagRow& row : flag_table()) names += (names.empty() ? "" : " ") + std::string(row.name);
  EXPECT_EQ(names,
            "model gpus nodes gpu hardware seq-len global-batch train freeze memory-limit host-memory-limit objective workload "
            "stored-dtype compute-dtype "
            "reduce-dtype state-dtype optimizer optimizer-form lr betas eps weight-decay decay warmup schedule clip-norm steps "
            "shuffle pack seed shard-degree "
            "replicate-degree units root reshard-after-forward recompute micro-batch grad-accum accum-sync prefetch init top "
            "explain output trace timeline "
            "predictions fail-above json quiet verbose configs");
}

}  // namespace
}  // namespace shardplan
