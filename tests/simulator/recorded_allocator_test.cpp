// The model beside what PyTorch 2.11's own allocator answered to the same scripts (data/allocator, made by tests/interop).
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/simulator/allocator_script.h"

namespace shardplan {
namespace {

std::string text_of(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  std::ostringstream text;
  text << stream.rdbuf();
  return text.str();
}

TEST(RecordedAllocator, TheModelGivesPytorchsAnswersStepByStep) {
  const std::filesystem::path folder = std::filesystem::path(SHARDPLAN_SOURCE_DIR) / "tests/simulator/data/allocator";
  int num_scripts = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".script") continue;
    ++num_scripts;
    std::istringstream model(run_on_model(text_of(entry.path())));
    std::istringstream pytorch(text_of(std::filesystem::path(entry.path()).replace_extension(".pytorch")));
    std::string expected;
    std::string found;
    for (int step = 1; std::getline(pytorch, expected); ++step) {
      ASSERT_TRUE(std::getline(model, found)) << entry.path() << " ends at step " << step;
      ASSERT_EQ(found, expected) << entry.path() << " step " << step;
    }
    EXPECT_FALSE(std::getline(model, found)) << entry.path() << " goes on";
  }
  EXPECT_EQ(num_scripts, 9);
}

}  // namespace
}  // namespace shardplan
