#include "core/write_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <iterator>

#include "core/error.h"
#include "tests/core/thrown.h"

namespace shardplan {
namespace {

class WriteFile : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("shardplan_write_file_" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  static std::string content_of(const std::filesystem::path& file) {
    std::ifstream stream(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), {}};
  }
  [[nodiscard]] std::ptrdiff_t num_files() const {
    return std::distance(std::filesystem::directory_iterator(folder_), std::filesystem::directory_iterator());
  }

  std::filesystem::path folder_;
};

TEST_F(WriteFile, ReplacesTheTargetAndLeavesNothingBesides) {
  const std::filesystem::path file = folder_ / "plan.json";
  write_file_whole(file, "first, and longer");
  write_file_whole(file, "second");
  EXPECT_EQ(content_of(file), "second");
  EXPECT_EQ(num_files(), 1);
}

TEST_F(WriteFile, MissingFolderIsNamedWithTheReason) {
  const std::filesystem::path file = folder_ / "missing" / "plan.json";
  const std::string expected = "cannot create the file: No such file or directory\n  at: " + file.string() +
                               "\n  try: check that the folder exists, is writable and has free space";
  EXPECT_EQ(thrown<IoError>([&] { write_file_whole(file, "x"); }), expected);
  EXPECT_EQ(thrown<IoError>([&] { require_writable(file); }), expected);
}

TEST_F(WriteFile, AFolderIsNoTarget) {
  EXPECT_EQ(thrown<IoError>([&] { write_file_whole(folder_, "x"); }).substr(0, 28), "cannot put the file in place");
  EXPECT_EQ(thrown<IoError>([&] { require_writable(folder_); }),
            "cannot create the file: Is a directory\n  at: " + folder_.string() +
                "\n  try: check that the folder exists, is writable and has free space");
}

// A limit on file sizes stands for a full disk: the write ends early.
TEST_F(WriteFile, AFailedWriteLeavesTheTargetAsItWas) {
  const std::filesystem::path file = folder_ / "plan.json";
  write_file_whole(file, "before");
  rlimit old_limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{.rlim_cur = 1000, .rlim_max = old_limit.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string message = thrown<IoError>([&] { write_file_whole(file, std::string(5000, 'x')); });
  ::setrlimit(RLIMIT_FSIZE, &old_limit);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_EQ(message, "cannot write the file: File too large\n  at: " + file.string() +
                         "\n  try: check that the folder exists, is writable and has free space");
  EXPECT_EQ(content_of(file), "before");
  EXPECT_EQ(num_files(), 1);
}

TEST_F(WriteFile, ProbingCreatesNothing) {
  require_writable(folder_ / "plan.json");
  EXPECT_EQ(num_files(), 0);
}

}  // namespace
}  // namespace shardplan
