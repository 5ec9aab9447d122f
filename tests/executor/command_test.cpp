// Numbers on execute's command line that no optimizer can work with are refused before anything is read.
#include "executor/command.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace shardplan {
namespace {

std::string refusal(std::vector<const char*> flags) {
  std::vector<const char*> argv = {"execute", "plan.json", "--model", "m", "--data", "d.jsonl", "--out", "o"};
  argv.insert(argv.end(), flags.begin(), flags.end());
  try {
    (void)parse_execute(static_cast<int>(argv.size()), argv.data(), {});
  } catch (const UsageError& e) {
    return e.what();
  }
  return "accepted";
}

TEST(ExecuteCommand, RefusesNumbersThatTrainNothing) {
  const std::string tail = "\n  at: command line\n  try: execute --help";
  EXPECT_EQ(refusal({"--lr", "nan"}), "--lr: expected a number of at least 0, found 'nan'" + tail);
  EXPECT_EQ(refusal({"--lr", "inf"}), "--lr: expected a number of at least 0, found 'inf'" + tail);
  EXPECT_EQ(refusal({"--lr=-1"}), "--lr: expected a number of at least 0, found '-1'" + tail);
  EXPECT_EQ(refusal({"--betas", "0.9", "1"}), "--betas: expected a number from 0 to below 1, found '1'" + tail);
  EXPECT_EQ(refusal({"--eps=-1"}), "--eps: expected a number of at least 0, found '-1'" + tail);
  EXPECT_EQ(refusal({"--clip-norm", "nan"}), "--clip-norm: expected a number of at least 0, found 'nan'" + tail);
}

TEST(ExecuteCommand, RefusesThreadsAndSeedsOutOfRange) {
  EXPECT_NE(refusal({"--threads", "100000000"}).find("--threads: "), std::string::npos);
  EXPECT_NE(refusal({"--shuffle=-3"}).find("--shuffle: "), std::string::npos);
}

}  // namespace
}  // namespace shardplan
