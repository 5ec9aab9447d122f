// Reads the #include lines of all rooms: arrows never turn back, libraries stay in their rooms, names say what things are.
//
//   core <- simulator <- planner/graph <- planner/lowering <- planner/search <- planner/answers <- the rest of planner
//                        planner/graph, planner/lowering <- executor          planner <- gui
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shardplan {
namespace {

namespace fs = std::filesystem;

// A part of the tree and the parts it may include besides itself. The first prefix that fits a file is its part.
struct Part {
  std::string_view prefix;
  std::vector<std::string_view> may_include;
};

const std::vector<Part>& parts() {
  static const std::vector<Part> kParts = {
      {"core/", {}},
      {"simulator/", {"core/"}},
      {"planner/graph/", {"core/"}},
      {"planner/lowering/", {"core/", "planner/graph/"}},
      {"planner/search/", {"core/", "simulator/", "planner/graph/", "planner/lowering/"}},
      {"planner/answers/", {"core/", "simulator/", "planner/graph/", "planner/lowering/", "planner/search/"}},
      {"planner/", {"core/", "simulator/", "planner/graph/", "planner/lowering/", "planner/search/", "planner/answers/"}},
      {"executor/", {"core/", "simulator/", "planner/graph/", "planner/lowering/"}},
      {"gui/", {"core/", "simulator/", "planner/graph/", "planner/lowering/", "planner/search/", "planner/answers/", "planner/"}},
  };
  return kParts;
}

// A library and where its headers may be included.
struct Library {
  std::string_view name;
  std::vector<std::string_view> header_prefixes;
  std::string_view room;
  bool in_sources_only;
};

const std::vector<Library>& libraries() {
  static const std::vector<Library> kLibraries = {
      {"LibTorch", {"torch/", "ATen/", "c10/", "caffe2/"}, "executor/", false},
      {"CUDA and NCCL", {"cuda", "nccl"}, "executor/", false},
      {"Boost", {"boost/"}, "planner/", true},
      {"Qt", {"Q", "Qt"}, "gui/", false},
  };
  return kLibraries;
}

const Part* part_of(std::string_view path) {
  for (const Part& part : parts()) {
    if (path.starts_with(part.prefix)) return &part;
  }
  return nullptr;
}

bool is_header(std::string_view path) { return path.ends_with(".h") || path.ends_with(".hpp"); }

// Tests obey the arrows of the room they stand for: tests/simulator/x.cpp includes what simulator/x.cpp may, and other tests.
std::string_view without_tests(std::string_view path) {
  constexpr std::string_view kTests = "tests/";
  return path.starts_with(kTests) ? path.substr(kTests.size()) : path;
}

bool may_include(std::string_view file, std::string_view included) {
  const bool is_test = file.starts_with("tests/");
  if (is_test && included.starts_with("tests/")) return true;
  const std::string_view place = without_tests(file);
  const Part* from = part_of(place);
  const Part* to = part_of(included);
  if (from == nullptr) return is_test;  // tests of no room (interop, benchmarks) see everything
  if (to == nullptr) return false;
  if (from == to) return true;
  // A test of planner or executor may use all of planner: it makes its plans there.
  if (is_test && (from->prefix.starts_with("planner/") || from->prefix == "executor/") && to->prefix.starts_with("planner/"))
    return true;
  return std::find(from->may_include.begin(), from->may_include.end(), to->prefix) != from->may_include.end();
}

// The rule that `#include "included"` or `#include <included>` in `file` breaks.
std::optional<std::string> broken_rule(std::string_view file, std::string_view included, bool quoted) {
  if (included.find("..") != std::string_view::npos) return "includes are written from the root";
  if (quoted) {
    if (!may_include(file, included)) return "an arrow turns back";
    return std::nullopt;
  }
  for (const Library& library : libraries()) {
    const auto starts_header = [included](std::string_view prefix) {
      // "Q" alone is the prefix of Qt's class headers: QWidget, but no path and no lower-case name.
      if (prefix == "Q") return included.size() > 1 && included[0] == 'Q' && included[1] >= 'A' && included[1] <= 'Z';
      return included.starts_with(prefix);
    };
    if (std::none_of(library.header_prefixes.begin(), library.header_prefixes.end(), starts_header)) continue;
    const bool is_free_test = file.starts_with("tests/") && part_of(without_tests(file)) == nullptr;
    if (!is_free_test && !without_tests(file).starts_with(library.room))
      return std::string(library.name) + " is included in " + std::string(library.room) + " only";
    if (library.in_sources_only && is_header(file)) return std::string(library.name) + " is included in sources only";
  }
  return std::nullopt;
}

// What a file or folder must not be called: names that say nothing.
bool says_nothing(std::string_view name) {
  const std::string_view stem = name.substr(0, name.find('.'));
  for (const std::string_view word : {"util", "utils", "common", "helper", "helpers", "misc"}) {
    if (stem == word || stem.ends_with("_" + std::string(word)) || stem.starts_with(std::string(word) + "_")) return true;
  }
  return false;
}

struct Include {
  std::string name;
  bool quoted;
  int line;
};

std::vector<Include> includes_of(const fs::path& file) {
  std::vector<Include> includes;
  std::ifstream stream(file);
  std::string line;
  for (int number = 1; std::getline(stream, line); ++number) {
    const std::size_t hash = line.find_first_not_of(" \t");
    if (hash == std::string::npos || line[hash] != '#') continue;
    const std::size_t word = line.find_first_not_of(" \t", hash + 1);
    if (word == std::string::npos || line.compare(word, 7, "include") != 0) continue;
    const std::size_t open = line.find_first_of("\"<", word);
    if (open == std::string::npos) continue;
    const std::size_t close = line.find_first_of("\">", open + 1);
    if (close == std::string::npos) continue;
    includes.push_back({line.substr(open + 1, close - open - 1), line[open] == '"', number});
  }
  return includes;
}

bool is_source(const fs::path& file) {
  const std::string extension = file.extension().string();
  return extension == ".h" || extension == ".hpp" || extension == ".cpp" || extension == ".cc" || extension == ".cu";
}

// Every file of the rooms and their tests, relative to the root, sorted.
std::vector<std::string> files_of_the_rooms() {
  const fs::path root = SHARDPLAN_SOURCE_DIR;
  std::vector<std::string> files;
  for (const char* top : {"core", "simulator", "planner", "executor", "gui", "tests", "configs", "cmake", "scripts"}) {
    if (!fs::is_directory(root / top)) continue;
    for (const auto& entry : fs::recursive_directory_iterator(root / top, fs::directory_options::follow_directory_symlink)) {
      if (entry.is_regular_file()) files.push_back(entry.path().lexically_relative(root).string());
    }
  }
  std::sort(files.begin(), files.end());
  return files;
}

TEST(Architecture, IncludesKeepTheArrowsAndLibrariesStayInTheirRooms) {
  const fs::path root = SHARDPLAN_SOURCE_DIR;
  int num_includes = 0;
  for (const std::string& file : files_of_the_rooms()) {
    if (!is_source(file)) continue;
    for (const Include& include : includes_of(root / file)) {
      ++num_includes;
      const std::optional<std::string> rule = broken_rule(file, include.name, include.quoted);
      EXPECT_FALSE(rule) << file << ":" << include.line << ": " << include.name << ": " << *rule;
      EXPECT_TRUE(!include.quoted || fs::exists(root / include.name))
          << file << ":" << include.line << ": no file " << include.name;
    }
  }
  EXPECT_GT(num_includes, 100) << "the rooms were not found under " << root;
}

TEST(Architecture, NamesSayWhatThingsAre) {
  for (const std::string& file : files_of_the_rooms()) {
    for (const fs::path& name : fs::path(file)) EXPECT_FALSE(says_nothing(name.string())) << file;
  }
}

TEST(ArchitectureRules, RefuseWhatTheyAreFor) {
  EXPECT_EQ(broken_rule("core/units.h", "simulator/simulate.h", true), "an arrow turns back");
  EXPECT_EQ(broken_rule("simulator/simulate.cpp", "planner/graph/op_graph.h", true), "an arrow turns back");
  EXPECT_EQ(broken_rule("planner/graph/ops.cpp", "planner/lowering/plan.h", true), "an arrow turns back");
  EXPECT_EQ(broken_rule("planner/graph/ops.cpp", "simulator/simulate.h", true), "an arrow turns back");
  EXPECT_EQ(broken_rule("planner/lowering/plan.cpp", "planner/search/search.h", true), "an arrow turns back");
  EXPECT_EQ(broken_rule("planner/search/search.cpp", "planner/answers/text_answer.h", true), "an arrow turns back");
  EXPECT_EQ(broken_rule("planner/answers/explain.cpp", "planner/command/flags.h", true), "an arrow turns back");
  EXPECT_EQ(broken_rule("planner/main.cpp", "executor/run_program.h", true), "an arrow turns back");
  EXPECT_EQ(broken_rule("executor/main.cpp", "planner/search/search.h", true), "an arrow turns back");
  EXPECT_EQ(broken_rule("executor/main.cpp", "planner/answers/text_answer.h", true), "an arrow turns back");
  EXPECT_EQ(broken_rule("executor/main.cpp", "gui/session.h", true), "an arrow turns back");
  EXPECT_EQ(broken_rule("gui/main.cpp", "executor/recorder.h", true), "an arrow turns back");
  EXPECT_EQ(broken_rule("core/units.cpp", "units.h", true), "an arrow turns back");
  EXPECT_EQ(broken_rule("core/units.cpp", "tests/core/thrown.h", true), "an arrow turns back");
  EXPECT_EQ(broken_rule("tests/core/units_test.cpp", "simulator/simulate.h", true), "an arrow turns back");
  EXPECT_EQ(broken_rule("simulator/simulate.cpp", "../core/units.h", true), "includes are written from the root");
  EXPECT_EQ(broken_rule("planner/graph/ops.cpp", "ATen/ATen.h", false), "LibTorch is included in executor/ only");
  EXPECT_EQ(broken_rule("tests/planner/ops_test.cpp", "torch/torch.h", false), "LibTorch is included in executor/ only");
  EXPECT_EQ(broken_rule("planner/main.cpp", "nccl.h", false), "CUDA and NCCL is included in executor/ only");
  EXPECT_EQ(broken_rule("core/json_reader.cpp", "boost/json.hpp", false), "Boost is included in planner/ only");
  EXPECT_EQ(broken_rule("planner/graph/op_graph.h", "boost/graph/adjacency_list.hpp", false), "Boost is included in sources only");
  EXPECT_EQ(broken_rule("planner/main.cpp", "QWidget", false), "Qt is included in gui/ only");
  EXPECT_EQ(broken_rule("executor/main.cpp", "QtCore/QString", false), "Qt is included in gui/ only");
  for (const char* name : {"utils", "common.h", "string_util.cpp", "test_helpers.h", "helpers", "misc.cpp"})
    EXPECT_TRUE(says_nothing(name)) << name;
}

TEST(ArchitectureRules, AllowWhatTheArrowsAllow) {
  EXPECT_FALSE(broken_rule("planner/graph/segments.cpp", "boost/graph/biconnected_components.hpp", false));
  EXPECT_FALSE(broken_rule("planner/answers/text_answer.cpp", "planner/search/search.h", true));
  EXPECT_FALSE(broken_rule("planner/command/verb_plan.cpp", "planner/answers/text_answer.h", true));
  EXPECT_FALSE(broken_rule("planner/search/search.cpp", "simulator/cost_model.h", true));
  EXPECT_FALSE(broken_rule("executor/op_table.cpp", "ATen/ATen.h", false));
  EXPECT_FALSE(broken_rule("executor/recorder.cpp", "planner/lowering/program_builder.h", true));
  EXPECT_FALSE(broken_rule("gui/main.cpp", "planner/answers/text_answer.h", true));
  EXPECT_FALSE(broken_rule("gui/main.cpp", "QWidget", false));
  EXPECT_FALSE(broken_rule("core/units.cpp", "queue", false));
  EXPECT_FALSE(broken_rule("tests/simulator/simulate_time_test.cpp", "tests/core/random_program.h", true));
  EXPECT_FALSE(broken_rule("tests/planner/search_test.cpp", "planner/search/search.h", true));
  EXPECT_FALSE(broken_rule("tests/executor/small_plan.h", "planner/search/knobs.h", true));
  EXPECT_FALSE(broken_rule("tests/interop/equal_logits.cpp", "torch/torch.h", false));
  for (const char* name : {"units.h", "outil.h", "uncommon.h", "commonality.h"}) EXPECT_FALSE(says_nothing(name)) << name;
}

}  // namespace
}  // namespace shardplan
