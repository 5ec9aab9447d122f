// Recomputed rotary frequencies have transformers' bits, for plain, linear and llama3 scaling and head sizes that round
// differently.
#include "executor/rotary_tables.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <sstream>

#include "tests/executor/ranks.h"
#include "tests/executor/small_models.h"

namespace shardplan {
namespace {

std::vector<nlohmann::ordered_json> configs() {
  std::vector<nlohmann::ordered_json> all;
  for (const std::int64_t head_dim : {16, 96, 128, 256}) {
    for (
        const char* scaling :
        {"null", R"({"rope_type": "linear", "factor": 2.5})",
         R"({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64})"}) {
      nlohmann::ordered_json config = config_of({.type = "llama", .hidden = 4 * head_dim, .head_dim = head_dim});
      config["rope_theta"] = head_dim == 128 ? 500000.0 : 10000.0;
      config["rope_scaling"] = nlohmann::ordered_json::parse(scaling);
      all.push_back(config);
    }
  }
  return all;
}

constexpr const char* kScript = R"(
import json, sys
from transformers import AutoConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding
with open(sys.argv[2], 'w') as out:
    for line in open(sys.argv[1]):
        frequencies = LlamaRotaryEmbedding(AutoConfig.for_model(**json.loads(line))).inv_freq
        out.write(' '.join(str(i) for i in frequencies.view(__import__('torch').int32).tolist()) + '\n')
)";

TEST(RotaryTables, HaveTransformersBits) {
  const TestFolder folder;
  std::ofstream(folder / "script.py") << kScript;
  {
    std::ofstream lines(folder / "configs.jsonl");
    for (const nlohmann::ordered_json& config : configs()) lines << config.dump() << "\n";
  }
  if (std::system(fmt::format("'{}' -c 'import torch, transformers' > /dev/null 2>&1", SHARDPLAN_PYTHON).c_str()) != 0)
    GTEST_SKIP() << "torch or transformers is missing in " << SHARDPLAN_PYTHON;
  ASSERT_EQ(
      std::system(fmt::format("HF_HUB_OFFLINE=1 '{}' '{}' '{}' '{}' > '{}' 2>&1", SHARDPLAN_PYTHON, (folder / "script.py").string(),
                              (folder / "configs.jsonl").string(), (folder / "bits.txt").string(), (folder / "log").string())
                      .c_str()),
      0)
      << text_of_file(folder / "log");
  std::istringstream bits(text_of_file(folder / "bits.txt"));
  for (const nlohmann::ordered_json& config : configs()) {
    const std::vector<float> frequencies = rotary_frequencies(model_from_json(config, "config.json", "small"));
    std::string line;
    ASSERT_TRUE(std::getline(bits, line));
    std::istringstream numbers(line);
    for (std::size_t i = 0; i < frequencies.size(); ++i) {
      std::int32_t expected = 0, made = 0;
      ASSERT_TRUE(numbers >> expected);
      std::memcpy(&made, &frequencies[i], sizeof made);
      EXPECT_EQ(made, expected) << config["rope_scaling"].dump() << " head size " << 2 * frequencies.size() << ", frequency " << i;
    }
  }
}

}  // namespace
}  // namespace shardplan
