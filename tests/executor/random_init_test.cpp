#include "executor/random_init.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "executor/safetensors.h"
#include "executor/seeded_words.h"
#include "planner/graph/parameter_table.h"
#include "tests/executor/ranks.h"
#include "tests/executor/small_models.h"

namespace shardplan {
namespace {

// Words of seed 7 and name "a", from the reference generator (Python, numpy).
TEST(SeededWords, AreTheReferenceGenerators) {
  const SeededWords words(7, "a");
  EXPECT_EQ(words.word(0), 0x3364dfe3eeffe9fULL);
  EXPECT_EQ(words.word(1), 0x8e0828ea101c338fULL);
  EXPECT_EQ(words.word(2), 0xe20b85ab4cdd1691ULL);
}

TEST(SeededWords, NormalsHaveMeanZeroAndVarianceOne) {
  const SeededWords words(1, "moments");
  constexpr int kCount = 200000;
  double sum = 0, squares = 0;
  for (int i = 0; i < kCount; ++i) {
    const double n = words.normal(static_cast<std::uint64_t>(i));
    sum += n;
    squares += n * n;
  }
  EXPECT_NEAR(sum / kCount, 0, 4 / std::sqrt(kCount));            // four standard errors
  EXPECT_NEAR(squares / kCount, 1, 4 * std::sqrt(1.7 / kCount));  // fourth moment of the sum of four uniforms: 2.7
}

template <class T>
T element(const StoredModel& model, const std::string& name, std::size_t i) {
  T value;
  std::memcpy(&value, model.bytes(*model.find(name)).data() + i * sizeof(T), sizeof(T));
  return value;
}

ModelSpec small_model() { return model_from_json(config_of({}), "config.json", "small"); }

TEST(RandomInit, WritesTheReferenceGeneratorsBits) {
  // First elements of lm_head.weight (std 0.02) and model.norm.weight (mean 1, std 0.1), seed 7: bits of the reference generator.
  const TestFolder folder;
  write_random_model(small_model(), folder / "f32", {.seed = 7, .std_deviation = 0.02});
  const StoredModel f32(folder / "f32");
  for (const auto& [i, bits] : {std::pair(0, 1017631118U), {1, 3173072009U}, {2, 1013977815U}, {3, 3148653051U}}) {
    EXPECT_EQ(element<std::uint32_t>(f32, "lm_head.weight", static_cast<std::size_t>(i)), bits);
  }
  EXPECT_EQ(element<std::uint32_t>(f32, "model.norm.weight", 0), 1065881022U);
  write_random_model(small_model(), folder / "bf16", {.seed = 7, .std_deviation = 0.02, .dtype = DType::BF16});
  EXPECT_EQ(element<std::int16_t>(StoredModel(folder / "bf16"), "lm_head.weight", 1), -17119);
  write_random_model(small_model(), folder / "f16", {.seed = 7, .std_deviation = 0.02, .dtype = DType::F16});
  EXPECT_EQ(element<std::int16_t>(StoredModel(folder / "f16"), "lm_head.weight", 2), 9089);
}

TEST(RandomInit, HoldsEveryParameterAndItsConfigSaysTheDtype) {
  const TestFolder folder;
  const ModelSpec model = small_model();
  write_random_model(model, folder.path(), {.dtype = DType::BF16});
  const StoredModel stored(folder.path());
  const ParameterTable table = parameter_table(model);
  EXPECT_EQ(stored.tensors().size(), table.parameters.size());
  for (const Parameter& p : table.parameters) {
    ASSERT_NE(stored.find(p.name), nullptr) << p.name;
    EXPECT_EQ(stored.find(p.name)->shape, p.shape);
  }
  EXPECT_EQ(find_model(folder.path().string(), "").spec.checkpoint_dtype, DType::BF16);
}

}  // namespace
}  // namespace shardplan
