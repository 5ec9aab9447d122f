// After ten steps every saved parameter has the bits of stock PyTorch FSDP2's, in fp32 on one and two ranks and in bf16 compute
// with fp32 reduction: same start weights, same tokens, same thread count, no clipping. Four ranks are not compared: there the
// order in which a sum is taken differs.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "executor/safetensors.h"
#include "tests/executor/ranks.h"
#include "tests/executor/recorded_runs.h"

namespace shardplan {
namespace {

const std::filesystem::path kSource = SHARDPLAN_SOURCE_DIR;

// Exit status, with output where the arguments send it.
int run_python(const std::string& arguments) {
  return std::system(fmt::format("'{}' {} 2>&1", SHARDPLAN_PYTHON, arguments).c_str());
}

struct Case {
  std::string name;  // of the recorded run whose model this is
  std::int32_t ranks = 1;
  bool recompute = false;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name << " on " << c.ranks; }

class StockFsdp2 : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (run_python("-c 'import torch, transformers, safetensors, numpy' > /dev/null") != 0)
      GTEST_SKIP() << "torch, transformers, safetensors or numpy is missing in " << SHARDPLAN_PYTHON;
  }
};

Plan plan_of(const Case& c) {
  nlohmann::ordered_json recorded = case_named(c.name);
  nlohmann::ordered_json& p = recorded["plan"];
  p["shard"] = c.ranks;
  p["replicate"] = 1;
  p["micro_batch"] = 2;
  p["grad_accum"] = 1;
  p["recompute"] = c.recompute;
  recorded["weight_decay"] = 0.1;
  recorded["shuffle"] = nullptr;
  Plan plan = plan_of_case(recorded);
  plan.workload.steps = 10;
  return plan;
}

TEST_P(StockFsdp2, EverySavedParameterHasItsBits) {
  const Case& c = GetParam();
  const Plan plan = plan_of(c);
  const TestFolder folder;
  write_start_model(plan, folder.path());
  const std::filesystem::path tokens = data_of_case(case_named(c.name)).parent_path() / "tokens.bin";
  ASSERT_EQ(run_python(fmt::format("'{}' --model '{}' --tokens '{}' --out '{}' --ranks {} --steps 10 --seq-len 32 --micro-batch 2 "
                                   "--lr 5e-3 --weight-decay 0.1 --compute {} > '{}'",
                                   (kSource / "tests/interop/fsdp2_reference.py").string(), (folder / "model").string(),
                                   tokens.string(), (folder / "stock").string(), c.ranks,
                                   dtype_name(plan.workload.precision.compute), (folder / "stock.log").string())),
            0)
      << text_of_file(folder / "stock.log");
  ASSERT_EQ(train(plan, tokens, folder.path()), 0);
  std::filesystem::rename(folder / "stock/final.safetensors", folder / "stock/model.safetensors");
  const StoredModel stock(folder / "stock"), ours(folder / "run/final");
  EXPECT_EQ(stock.tensors().size(), ours.tensors().size());
  for (const auto& [name, tensor] : stock.tensors()) {
    const StoredTensor* mine = ours.find(name);
    ASSERT_NE(mine, nullptr) << name;
    const std::span<const std::byte> a = stock.bytes(tensor), b = ours.bytes(*mine);
    EXPECT_TRUE(std::equal(a.begin(), a.end(), b.begin(), b.end())) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, StockFsdp2,
                         testing::Values(Case{"llama_fp32", 1}, Case{"llama_fp32", 2}, Case{"llama_tied_odd_vocab", 2},
                                         Case{"qwen2_accum", 2}, Case{"qwen3_headdim", 2}, Case{"mistral_window", 2},
                                         Case{"llama_fp32", 2, true}, Case{"llama_bf16", 2}),
                         [](const auto& info) {
                           return fmt::format("{}_{}_ranks{}", info.param.name, info.param.ranks,
                                              info.param.recompute ? "_recomputed" : "");
                         });

}  // namespace
}  // namespace shardplan
