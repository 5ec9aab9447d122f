// The `plan` program as people see it: exit code, stdout and stderr of whole runs, to the byte.
//
// A case is a folder: `command` holds the arguments, one a line; `expected` what came out. SHARDPLAN_UPDATE_GOLDEN=1 writes
// `expected` anew; the difference is then for review.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace {
namespace fs = std::filesystem;

const fs::path kCases = fs::path(SHARDPLAN_SOURCE_DIR) / "tests/golden/plan";

std::string content(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

std::string shell_word(const std::string& argument) {
  std::string result = "'";
  for (const char c : argument) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

// Runs in the folder of the cases, so that files are named without a path.
std::string run(const fs::path& folder) {
  std::istringstream lines(content(folder / "command"));
  std::string command =
      fmt::format("cd {} && env -u NO_COLOR -u CLICOLOR_FORCE SHARDPLAN_CONFIGS={} {}", shell_word(kCases.string()),
                  shell_word((fs::path(SHARDPLAN_SOURCE_DIR) / "configs").string()), shell_word(SHARDPLAN_PLAN));
  for (std::string argument; std::getline(lines, argument);) command += " " + shell_word(argument);
  const fs::path log = fs::temp_directory_path() / fmt::format("shardplan_golden_{}", folder.filename().string());
  command += fmt::format(" 2> {}", shell_word(log.string()));
  FILE* pipe = ::popen(command.c_str(), "r");
  std::string out;
  for (int c; (c = std::fgetc(pipe)) != EOF;) out += static_cast<char>(c);
  const int status = ::pclose(pipe);
  const std::string err = content(log);
  fs::remove(log);
  return fmt::format("exit code {}\n--- stdout\n{}--- stderr\n{}", WEXITSTATUS(status), out, err);
}

class Golden : public testing::TestWithParam<std::string> {};

TEST_P(Golden, IsUnchanged) {
  const fs::path folder = kCases / GetParam();
  const std::string actual = run(folder);
  if (const char* update = std::getenv("SHARDPLAN_UPDATE_GOLDEN"); update != nullptr && std::string(update) == "1") {
    std::ofstream(folder / "expected", std::ios::binary) << actual;
    GTEST_SKIP() << "written anew: " << folder;
  }
  EXPECT_EQ(actual, content(folder / "expected")) << "SHARDPLAN_UPDATE_GOLDEN=1 writes it anew";
  EXPECT_EQ(actual, run(folder)) << "the same command gives the same bytes";
}

std::vector<std::string> cases() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(kCases)) {
    if (fs::exists(entry.path() / "command")) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

INSTANTIATE_TEST_SUITE_P(Plan, Golden, testing::ValuesIn(cases()), [](const auto& info) { return info.param; });

}  // namespace
