#include "executor/launch.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <map>
#include <thread>

#include "tests/executor/ranks.h"

namespace shardplan {
namespace {

using Variables = std::map<std::string, std::string>;

std::optional<RankPlace> place_of(const Variables& variables) {
  return rank_from_environment([&](const std::string& name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  });
}

std::string message_of(const Variables& variables) {
  try {
    (void)place_of(variables);
  } catch (const UsageError& e) {
    return e.what();
  }
  return "no error";
}

const Variables kTorchrun = {
    {"RANK", "3"},           {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}, {"LOCAL_WORLD_SIZE", "2"}, {"MASTER_ADDR", "node0"},
    {"MASTER_PORT", "29511"}};

TEST(RankFromEnvironment, NobodyStartedThisProcess) { EXPECT_FALSE(place_of({{"HOME", "/root"}})); }

TEST(RankFromEnvironment, ReadsTorchrun) {
  Variables v = kTorchrun;
  v["TORCHELASTIC_ERROR_FILE"] = "/tmp/error.json";
  v["SLURM_PROCID"] = "9";  // srun starting torchrun: torchrun wins
  v["SLURM_NTASKS"] = "9";
  const RankPlace p = *place_of(v);
  EXPECT_EQ(p.launcher, "torchrun");
  EXPECT_EQ(std::tuple(p.rank, p.world, p.local_rank, p.local_world), std::tuple(3, 4, 1, 2));
  EXPECT_EQ(p.store_host, "node0");
  EXPECT_EQ(p.store_port, 29511);
  EXPECT_EQ(p.error_file, "/tmp/error.json");
}

TEST(RankFromEnvironment, RankZeroHostsTheStoreUnlessTheAgentDoes) {
  Variables v = kTorchrun;
  EXPECT_FALSE(place_of(v)->hosts_store);
  v["RANK"] = "0";
  EXPECT_TRUE(place_of(v)->hosts_store);
  v["TORCHELASTIC_USE_AGENT_STORE"] = "False";
  EXPECT_TRUE(place_of(v)->hosts_store);
  v["TORCHELASTIC_USE_AGENT_STORE"] = "True";
  EXPECT_FALSE(place_of(v)->hosts_store);
}

TEST(RankFromEnvironment, ReadsSlurm) {
  Variables v = {{"SLURM_PROCID", "5"},
                 {"SLURM_NTASKS", "8"},
                 {"SLURM_LOCALID", "1"},
                 {"SLURM_NTASKS_PER_NODE", "4"},
                 {"SLURM_NODELIST", "gpu[003-004,9]"},
                 {"SLURM_JOB_ID", "1234567"}};
  const RankPlace p = *place_of(v);
  EXPECT_EQ(p.launcher, "slurm");
  EXPECT_EQ(p.store_host, "gpu003");
  EXPECT_EQ(p.store_port, 15000 + 4567);
  v["SLURM_JOB_NAME"] = "interactive";
  EXPECT_FALSE(place_of(v)) << "a shell inside an allocation is no rank";
  v.erase("SLURM_JOB_NAME");
  v.erase("SLURM_NTASKS_PER_NODE");
  EXPECT_EQ(message_of(v),
            "SLURM_NTASKS is set without SLURM_NTASKS_PER_NODE\n  at: environment of slurm\n  try: give srun or sbatch "
            "--ntasks-per-node, the GPUs of a node");
}

TEST(RankFromEnvironment, ReadsOpenMpi) {
  Variables v = {{"OMPI_COMM_WORLD_RANK", "1"},
                 {"OMPI_COMM_WORLD_SIZE", "2"},
                 {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                 {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
  EXPECT_EQ(place_of(v)->launcher, "openmpi");
  EXPECT_EQ(place_of(v)->store_host, "127.0.0.1");
  v["OMPI_COMM_WORLD_LOCAL_SIZE"] = "1";
  v["OMPI_COMM_WORLD_LOCAL_RANK"] = "0";
  EXPECT_EQ(message_of(v),
            "ranks run on several machines and MASTER_ADDR is not set\n  at: environment of openmpi\n  try: mpirun -x "
            "MASTER_ADDR=HOST -x MASTER_PORT=29500");
}

TEST(RankFromEnvironment, NamesWhatContradictsItself) {
  Variables v = kTorchrun;
  v["RANK"] = "4";
  EXPECT_EQ(message_of(v), "rank 4 of 4 (local 1 of 2) does not exist\n  at: environment of torchrun");
  v["RANK"] = "x";
  EXPECT_EQ(message_of(v), "environment variable RANK is 'x', expected a number from 0\n  at: environment of torchrun");
  v = kTorchrun;
  v.erase("LOCAL_RANK");
  EXPECT_EQ(message_of(v),
            "environment variable LOCAL_RANK is not set\n  at: environment of torchrun\n  try: start the ranks with torchrun, or "
            "unset its other variables");
}

TEST(FirstHost, ExpandsListsAndRanges) {
  EXPECT_EQ(first_host("a"), "a");
  EXPECT_EQ(first_host("a,b"), "a");
  EXPECT_EQ(first_host("a b"), "a");
  EXPECT_EQ(first_host("host[5-9,12]"), "host5");
  EXPECT_EQ(first_host("n[007]"), "n007");
  EXPECT_EQ(first_host("a,host[5-9]"), "a");
}

TEST(ErrorFile, HasTorchrunsShape) {
  const TestFolder folder;
  write_error_file(folder / "e.json", "it broke", 1700000000);
  EXPECT_EQ(text_of_file(folder / "e.json"),
            R"({"message":{"message":"it broke","extraInfo":{"py_callstack":"","timestamp":"1700000000"}}})");
}

struct Captured {
  int code = -1;
  std::string error, out, err;
};

Captured run_captured(std::int32_t ranks, const std::function<int(const RankPlace&)>& body, double grace_seconds = 2.0) {
  Captured c;
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  try {
    c.code = run_local_ranks(ranks, body, grace_seconds);
  } catch (const Error& e) {
    c.code = static_cast<int>(e.code());
    c.error = e.what();
  }
  c.out = testing::internal::GetCapturedStdout();
  c.err = testing::internal::GetCapturedStderr();
  return c;
}

TEST(LocalRanks, OutputOfRankZeroIsTheAnswerAllElseIsPrefixed) {
  const Captured c = run_captured(2, [](const RankPlace& p) {
    std::printf("answer of %d\n", p.rank);
    std::fprintf(stderr, "log of %d without end", p.rank);
    return 0;
  });
  EXPECT_EQ(c.code, 0);
  EXPECT_EQ(c.out, "answer of 0\n");
  for (const char* line : {"[rank1] answer of 1\n", "[rank0] log of 0 without end\n", "[rank1] log of 1 without end\n"}) {
    EXPECT_NE(c.err.find(line), std::string::npos) << c.err;
  }
}

TEST(LocalRanks, TheSharedCodeOfAllRanksIsReturned) {
  EXPECT_EQ(run_captured(3, [](const RankPlace&) { return 6; }).code, 6);
}

double seconds_of(const std::function<void()>& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void hang() { std::this_thread::sleep_for(std::chrono::seconds(60)); }

TEST(LocalRanks, TheFirstOwnFailureIsTheRootCauseNotThePeersThatLostIt) {
  const Captured c = run_captured(3, [](const RankPlace& p) -> int {
    if (p.rank == 0)
      throw PeerLost("all_gather over axis shard failed: Connection closed by peer", "rank 0", "look at the rank that ended first");
    if (p.rank == 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      throw ConfigError("tensor is broken", "model.safetensors", "copy it again");
    }
    hang();
    return 0;
  });
  EXPECT_EQ(c.code, static_cast<int>(ExitCode::BadInput));
  EXPECT_EQ(c.error, "rank 2: tensor is broken\n  at: model.safetensors\n  try: copy it again");
}

TEST(LocalRanks, AKilledRankIsNamedAndTheOthersEndWithinSeconds) {
  Captured c;
  const double seconds = seconds_of([&] {
    c = run_captured(
        3,
        [](const RankPlace& p) {
          if (p.rank == 1) ::kill(::getpid(), SIGKILL);
          hang();  // deaf to everything but SIGKILL
          return 0;
        },
        0.5);
  });
  EXPECT_LT(seconds, 5.0);
  EXPECT_EQ(c.code, static_cast<int>(ExitCode::RuntimeFailure));
  EXPECT_EQ(c.error.substr(0, c.error.find('\n')), "rank 1 was ended by signal 9 (Killed)");
}

}  // namespace
}  // namespace shardplan
