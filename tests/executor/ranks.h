// Runs a function on several forked ranks that meet through a store, and collects a text from each.
//
// The test process itself must not have touched tensors before: what forks must have no threads.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "executor/launch.h"
#include "executor/process_groups.h"

namespace shardplan {

// A folder for one test, removed at its end.
class TestFolder {
 public:
  TestFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "shardplan-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TestFolder() { std::filesystem::remove_all(path_); }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] std::filesystem::path operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

inline std::string text_of_file(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  std::stringstream text;
  text << stream.rdbuf();
  return text.str();
}

inline std::vector<std::string> run_on_ranks(std::int32_t ranks, const std::function<std::string(RankWorld&)>& body) {
  const TestFolder folder;
  const int code = run_local_ranks(ranks, [&](const RankPlace& place) {
    RankWorld world(place, std::chrono::seconds(60));
    const std::string text = body(world);
    std::ofstream(folder / std::to_string(place.rank)) << text;
    return 0;
  });
  if (code != 0) throw std::runtime_error("a rank ended with code " + std::to_string(code));
  std::vector<std::string> texts;
  for (std::int32_t r = 0; r < ranks; ++r) texts.push_back(text_of_file(folder / std::to_string(r)));
  return texts;
}

}  // namespace shardplan
