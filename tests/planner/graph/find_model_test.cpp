#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "planner/graph/model_spec.h"
#include "tests/core/thrown.h"
#include "tests/planner/graph/small_graphs.h"

namespace shardplan {
namespace {

namespace fs = std::filesystem;
using testing_graph::small_config;

void write(const fs::path& file, const std::string& text) {
  fs::create_directories(file.parent_path());
  std::ofstream(file) << text;
}

// A folder with two aliases and a hub cache with one model in two revisions.
class FindModel : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::temp_directory_path() / ("find_model_test." + std::to_string(::getpid()));
    fs::remove_all(root_);
    aliases_ = root_ / "models";
    write(aliases_ / "llama-3-8b.json", small_config("llama", {{"_name_or_path", "meta-llama/Meta-Llama-3-8B"}}).dump());
    write(aliases_ / "qwen3-0.6b.json", small_config("qwen3", {{"_name_or_path", "Qwen/Qwen3-0.6B"}}).dump());
    const fs::path repository = root_ / "hub" / "models--org--tiny";
    write(repository / "refs" / "main", "abc");
    write(repository / "snapshots" / "abc" / "config.json", small_config("mistral").dump());
    write(repository / "refs" / "other", "def");
    write(repository / "snapshots" / "def" / "config.json", small_config("qwen2").dump());
    ::setenv("HF_HUB_CACHE", (root_ / "hub").c_str(), 1);
  }
  void TearDown() override {
    ::unsetenv("HF_HUB_CACHE");
    fs::remove_all(root_);
  }
  FoundModel find(const std::string& model) { return find_model(model, aliases_); }

  fs::path root_, aliases_;
};

TEST_F(FindModel, AliasesMatchByLettersAndDigitsAlone) {
  for (const std::string model : {"llama-3-8b", "llama3-8b", "Llama-3-8B", "LLAMA_3.8b"}) {
    const FoundModel found = find(model);
    EXPECT_EQ(found.spec.name, "llama-3-8b") << model;
    EXPECT_TRUE(found.directory.empty());
  }
  EXPECT_EQ(model_aliases(aliases_), (std::vector<std::string>{"llama-3-8b", "qwen3-0.6b"}));
}

TEST_F(FindModel, DirectoryAndFileComeBeforeAliases) {
  const fs::path directory = root_ / "mine";
  write(directory / "config.json", small_config("qwen2").dump());
  EXPECT_EQ(find(directory.string()).spec.model_type, "qwen2");
  EXPECT_EQ(find(directory.string()).directory, directory);
  EXPECT_EQ(find((directory / "config.json").string()).spec.name, "mine");
  EXPECT_EQ(find((directory / "config.json").string()).directory, directory);
  EXPECT_EQ(find((aliases_ / "qwen3-0.6b.json").string()).spec.name, "qwen3-0.6b");
}

TEST_F(FindModel, HubIdsAreReadFromTheCacheByRevision) {
  EXPECT_EQ(find("org/tiny").spec.model_type, "mistral");
  EXPECT_EQ(find("org/tiny@other").spec.model_type, "qwen2");
  EXPECT_EQ(find("org/tiny@def").spec.model_type, "qwen2");
  EXPECT_EQ(find("org/tiny").spec.name, "tiny");
  EXPECT_EQ(find("org/tiny").directory, root_ / "hub" / "models--org--tiny" / "snapshots" / "abc");
}

TEST_F(FindModel, AHubIdWithoutFilesHereFallsBackOnThePublishedFacts) {
  EXPECT_EQ(find("meta-llama/Meta-Llama-3-8B").spec.name, "llama-3-8b");
}

TEST_F(FindModel, NotFoundSaysWhatWasTriedWhatIsNearAndHowToFetch) {
  EXPECT_EQ(thrown<UsageError>([&] { (void)find("org/lama-9b"); }),
            "no model \"org/lama-9b\"; tried org/lama-9b (file or directory); the aliases of " + aliases_.string() + "; " +
                (root_ / "hub/models--org--lama-9b/snapshots/main/config.json").string() +
                "\n  at: --model\n  try: llama-3-8b, qwen3-0.6b; or: hf download org/lama-9b");
  EXPECT_EQ(thrown<UsageError>([&] { (void)find("qwen3-0.7b"); }),
            "no model \"qwen3-0.7b\"; tried qwen3-0.7b (file or directory); the aliases of " + aliases_.string() + "; " +
                (root_ / "hub/models--qwen3-0.7b/snapshots/main/config.json").string() +
                "\n  at: --model\n  try: qwen3-0.6b, llama-3-8b");
  // The share of letters that differ decides: of "lama38c" two differ from "llama38b", three of "lama2" in a shorter word.
  write(aliases_ / "lama2.json", small_config("llama").dump());
  EXPECT_EQ(thrown<UsageError>([&] { (void)find("lama3-8c"); }),
            "no model \"lama3-8c\"; tried lama3-8c (file or directory); the aliases of " + aliases_.string() + "; " +
                (root_ / "hub/models--lama3-8c/snapshots/main/config.json").string() +
                "\n  at: --model\n  try: llama-3-8b, lama2, qwen3-0.6b");
  EXPECT_EQ(thrown<UsageError>([&] { (void)find(""); }),
            "no model is named\n  at: --model\n  try: an alias, a directory, a config.json or a hub id");
  fs::create_directories(root_ / "empty");
  EXPECT_EQ(thrown<UsageError>([&] { (void)find((root_ / "empty").string()); }),
            "the directory " + (root_ / "empty").string() +
                " holds no config.json\n  at: --model\n  try: a directory in Hugging Face layout");
}

}  // namespace
}  // namespace shardplan
