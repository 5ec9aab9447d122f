// The model of the caching allocator beside PyTorch's own, live: random scripts, step by step.
//
// PyTorch's allocator runs in a process of its own (pytorch_allocator), over a CUDA runtime without a device. Compared are the
// address of every block and all counters after every step. One figure is left out where it follows from the order of a hash table:
// the peak of inactive split bytes when blocks wait for other streams.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

#include "core/error.h"
#include "simulator/allocator_options.h"
#include "tests/simulator/allocator_script.h"

namespace shardplan {
namespace {

constexpr std::int64_t kMib = std::int64_t{1} << 20;

const char* const kConfs[] = {
    "",
    "max_split_size_mb:20",
    "max_split_size_mb:32",
    "max_split_size_mb:24,max_non_split_rounding_mb:22",
    "expandable_segments:True",
    "expandable_segments:True,max_split_size_mb:30",
    "expandable_segments:True,large_segment_size_mb:12",
    "expandable_segments:True,roundup_power2_divisions:8",
    "expandable_segments:True,per_process_memory_fraction:0.3",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:[1:1,4:8,>:16]",
    "garbage_collection_threshold:0.5,per_process_memory_fraction:0.6",
    "garbage_collection_threshold:0.3,per_process_memory_fraction:0.5,max_split_size_mb:30",
    "large_segment_size_mb:40",
    "large_segment_size_mb:40,max_split_size_mb:50",
    "large_segment_size_mb:12,max_split_size_mb:12",
};

bool has_pytorch() { return std::string(SHARDPLAN_PYTORCH_ALLOCATOR) != ""; }

std::string run_on_pytorch(const std::string& script) {
  const std::filesystem::path file = std::filesystem::temp_directory_path() / ("shardplan_allocator." + std::to_string(::getpid()));
  std::ofstream(file) << script;
  FILE* const pipe = ::popen((std::string(SHARDPLAN_PYTORCH_ALLOCATOR) + " < " + file.string() + " 2>&1").c_str(), "r");
  std::string output;
  char buffer[1 << 16];
  for (std::size_t n = 0; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) output.append(buffer, n);
  EXPECT_EQ(::pclose(pipe), 0) << output.substr(output.size() > 500 ? output.size() - 500 : 0);
  std::filesystem::remove(file);
  return output;
}

// The fourth pair of a line is inactive split bytes: keeps its level, drops its peak.
std::string without_split_peak(const std::string& line) {
  static const std::regex fourth("^([a-z]+(?: [0-9a-z-]+)?(?: [0-9]+/[0-9]+){3} [0-9]+)/[0-9]+");
  return std::regex_replace(line, fourth, "$1");
}

void expect_equal(const std::string& script, const std::string& model, const std::string& pytorch, const bool with_records) {
  std::istringstream steps(script);
  std::istringstream ours(model);
  std::istringstream theirs(pytorch);
  for (std::string step; std::getline(steps, step);) {
    if (step.starts_with("device")) continue;
    std::string found;
    std::string expected;
    std::getline(ours, found);
    std::getline(theirs, expected);
    if (with_records) {
      found = without_split_peak(found);
      expected = without_split_peak(expected);
    }
    ASSERT_EQ(found, expected) << step;
  }
}

class AllocatorAgainstPytorch : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Settings, AllocatorAgainstPytorch, testing::ValuesIn(kConfs));

TEST_P(AllocatorAgainstPytorch, RandomScriptsGiveEqualAnswersStepByStep) {
  if (!has_pytorch()) GTEST_SKIP() << "no libc10_cuda with its CUDA headers was found at configuration";
  const std::int64_t devices[] = {4000 * kMib, 800 * kMib + 12345, 300 * kMib};
  const std::int64_t factors[] = {1, 13, 97};  // up to 7 GiB
  for (std::uint32_t seed = 0; seed < 18; ++seed) {
    const std::int64_t factor = factors[seed / 3 % 3];
    const RandomScript options{.seed = seed,
                               .num_steps = 600,
                               .num_streams = 1 + static_cast<int>(seed / 2 % 3),
                               .conf = GetParam(),
                               .device_bytes = devices[seed % 3] * factor,
                               .outside_bytes = seed % 5 == 0 ? 0 : 7 * kMib,
                               .most_live = seed % 4 == 0 ? 15 : 60,
                               .with_records = seed % 2 == 0,
                               .size_factor = factor};
    const std::string script = random_script(options);
    expect_equal(script, run_on_model(script), run_on_pytorch(script), options.with_records);
    if (HasFatalFailure()) FAIL() << "seed " << seed;
  }
}

TEST(AllocatorAgainstPytorchFiles, RecordedAnswersAreThoseOfThisPytorch) {
  if (!has_pytorch()) GTEST_SKIP() << "no libc10_cuda with its CUDA headers was found at configuration";
  int num_scripts = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(SHARDPLAN_SOURCE_DIR) + "/tests/simulator/data/allocator")) {
    if (entry.path().extension() != ".script") continue;
    ++num_scripts;
    const auto text_of = [](const std::filesystem::path& file) {
      std::ostringstream text;
      text << std::ifstream(file).rdbuf();
      return text.str();
    };
    const std::string script = text_of(entry.path());
    expect_equal(script, text_of(std::filesystem::path(entry.path()).replace_extension(".pytorch")), run_on_pytorch(script), true);
  }
  EXPECT_EQ(num_scripts, 9);
}

// Both accept or both refuse. PyTorch reads "100x", "50.5" and "-5" as some number; here they are mistakes.
TEST(AllocatorAgainstPytorchFiles, TheSameSettingsAreAccepted) {
  if (!has_pytorch()) GTEST_SKIP() << "no libc10_cuda with its CUDA headers was found at configuration";
  const char* const texts[] = {"large_segment_size_mb:10",
                               "large_segment_size_mb:11",
                               "max_split_size_mb:19",
                               "max_split_size_mb:20",
                               "max_non_split_rounding_mb:19",
                               "max_non_split_rounding_mb:20",
                               "garbage_collection_threshold:0",
                               "garbage_collection_threshold:1",
                               "garbage_collection_threshold:0.99",
                               "per_process_memory_fraction:0",
                               "per_process_memory_fraction:1",
                               "per_process_memory_fraction:1.5",
                               "roundup_power2_divisions:0",
                               "roundup_power2_divisions:1",
                               "roundup_power2_divisions:3",
                               "roundup_power2_divisions:[]",
                               "roundup_power2_divisions:[3:4]",
                               "roundup_power2_divisions:[4:3]",
                               "roundup_power2_divisions:[4:0]",
                               "roundup_power2_divisions:[65536:8]",
                               "roundup_power2_divisions:[4:8",
                               "expandable_segments:true",
                               "expandable_segments:False",
                               "backend:native",
                               "backend:cudaMallocAsync",
                               "max_split_size_mb",
                               "max_split_size_mb:100,",
                               "large_segment_size_mb:12,max_split_size_mb:12",
                               "large_segment_size_mb:12,max_split_size_mb:11",
                               "large_segment_size_mb:12,max_non_split_rounding_mb:12",
                               "large_segment_size_mb:40,max_non_split_rounding_mb:30",
                               "large_segment_size_mb:40,max_split_size_mb:30",
                               "max_split_size_mb:30,large_segment_size_mb:40",
                               "release_lock_on_cudamalloc:True",
                               "pinned_use_cuda_host_register:False",
                               "pinned_num_register_threads:4",
                               "pinned_num_register_threads:3",
                               "pinned_num_register_threads:128",
                               "pinned_num_register_threads:256",
                               "pinned_reserve_segment_size_mb:5",
                               "graph_capture_record_stream_reuse:True",
                               "pinned_use_background_threads:True",
                               "max_split_size:100"};
  for (const char* const text : texts) {
    bool accepted = true;
    try {
      static_cast<void>(allocator_options_from_text(text));
    } catch (const UsageError&) {
      accepted = false;
    }
    EXPECT_EQ(accepted, run_on_pytorch(std::string("conf ") + text + "\n").starts_with("accepted")) << text;
  }
}

}  // namespace
}  // namespace shardplan
