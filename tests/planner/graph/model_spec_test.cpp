#include "planner/graph/model_spec.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "tests/core/thrown.h"
#include "tests/planner/graph/small_graphs.h"

namespace shardplan {
namespace {

using Json = nlohmann::ordered_json;
using testing_graph::small_config;
using testing_graph::small_model;
using testing_graph::small_request;

std::string error_of(const std::string& model_type, const Json& changes) {
  return thrown<ConfigError>([&] { require_graph(small_model(model_type, changes)); });
}

Json without(Json config, const std::string& key) {
  config.erase(key);
  return config;
}

TEST(ModelSpec, BothGenerationsOfKeysGiveTheSameModel) {
  const ModelSpec older = small_model("llama", {{"torch_dtype", "bfloat16"},
                                                {"rope_theta", 500000.0},
                                                {"rope_scaling",
                                                 {{"type", "llama3"},
                                                  {"factor", 8.0},
                                                  {"low_freq_factor", 1.0},
                                                  {"high_freq_factor", 4.0},
                                                  {"original_max_position_embeddings", 16}}}});
  const ModelSpec newer = small_model("llama", {{"dtype", "bfloat16"},
                                                {"rope_parameters",
                                                 {{"rope_type", "llama3"},
                                                  {"rope_theta", 500000.0},
                                                  {"factor", 8.0},
                                                  {"low_freq_factor", 1.0},
                                                  {"high_freq_factor", 4.0},
                                                  {"original_max_position_embeddings", 16}}}});
  EXPECT_EQ(older.checkpoint_dtype, DType::BF16);
  EXPECT_EQ(older.checkpoint_dtype, newer.checkpoint_dtype);
  EXPECT_EQ(older.rope.type, "llama3");
  EXPECT_EQ(older.rope.theta, 500000.0);
  EXPECT_EQ(older.rope, newer.rope);
}

TEST(ModelSpec, AbsentKeysTakeTheFamilysDefaults) {
  const ModelSpec llama = small_model("llama");
  EXPECT_EQ(llama.head_dim, 8);  // 32 / 4
  EXPECT_EQ(llama.rope, RopeSpec{});
  EXPECT_EQ(llama.checkpoint_dtype, DType::F32);
  EXPECT_EQ(llama.pad_token_id, -1);
  EXPECT_FALSE(llama.tied_embeddings || llama.qkv_bias || llama.o_bias || llama.mlp_bias || llama.qk_norm);

  EXPECT_EQ(small_model("qwen3").head_dim, 128);
  EXPECT_TRUE(small_model("qwen3").qk_norm);
  EXPECT_TRUE(small_model("qwen2").qkv_bias);
  EXPECT_FALSE(small_model("qwen2").o_bias);

  // An absent number of key/value heads: one a head in llama, 8 in mistral; null: one a head in both.
  const auto model_without_kv = [](const std::string& type) {
    return model_from_json(without(small_config(type, {{"num_attention_heads", 16}}), "num_key_value_heads"), "small.json",
                           "small");
  };
  EXPECT_EQ(model_without_kv("llama").num_kv_heads, 16);
  EXPECT_EQ(model_without_kv("mistral").num_kv_heads, 8);
  EXPECT_EQ(small_model("mistral", {{"num_attention_heads", 16}, {"num_key_value_heads", nullptr}}).num_kv_heads, 16);
}

TEST(ModelSpec, BiasFlagsMeanWhatTheFamilyMakesOfThem) {
  const Json both = {{"attention_bias", true}, {"mlp_bias", true}};
  const ModelSpec llama = small_model("llama", both), mistral = small_model("mistral", both), qwen3 = small_model("qwen3", both);
  EXPECT_TRUE(llama.qkv_bias && llama.o_bias && llama.mlp_bias);
  EXPECT_FALSE(mistral.qkv_bias || mistral.o_bias || mistral.mlp_bias);
  EXPECT_TRUE(qwen3.qkv_bias && qwen3.o_bias);
  EXPECT_FALSE(qwen3.mlp_bias);
}

TEST(ModelSpec, WindowsPerLayerFollowTheFamily) {
  using Windows = std::vector<std::int64_t>;
  EXPECT_EQ(small_model("llama", {{"sliding_window", 8}}).sliding_window, (Windows{0, 0}));
  EXPECT_EQ(small_model("mistral").sliding_window, (Windows{0, 0}));  // null
  EXPECT_EQ(small_model("mistral", {{"sliding_window", 8}}).sliding_window, (Windows{8, 8}));
  EXPECT_EQ(model_from_json(without(small_config("mistral"), "sliding_window"), "small.json", "small").sliding_window,
            (Windows{4096, 4096}));
  const Json window = {{"sliding_window", 8}, {"max_window_layers", 1}};
  EXPECT_EQ(small_model("qwen2", window).sliding_window, (Windows{0, 0}));  // not used
  Json used = window;
  used["use_sliding_window"] = true;
  EXPECT_EQ(small_model("qwen2", used).sliding_window, (Windows{0, 8}));
  used["layer_types"] = {"sliding_attention", "full_attention"};
  EXPECT_EQ(small_model("qwen3", used).sliding_window, (Windows{8, 0}));
}

TEST(ModelSpec, ForeignKeysAreKeptAndNotJudged) {
  const ModelSpec model = small_model("llama", {{"_name_or_path", "org/model"}, {"something_of_tomorrow", {1, 2}}});
  EXPECT_EQ(model.config["something_of_tomorrow"], Json({1, 2}));
}

// Every model_type whose parameters are known.
constexpr const char* kKnown =
    "llama, mistral, mixtral, qwen2, qwen2_moe, qwen3, qwen3_moe, deepseek_v2, deepseek_v3, gemma, gemma2, gemma3, gemma3_text, "
    "phi, phi3, gpt2, gpt_neox, gptj, opt, "
    "falcon, bloom, mpt, starcoder2, olmo2, granite, cohere, stablelm";

TEST(ModelSpec, UnknownFamilyNamesTheSupportedAndTheNearest) {
  EXPECT_EQ(error_of("llamma", Json::object()),
            std::string("model_type \"llamma\" is not supported\n  at: small.json#/model_type\n  try: one of ") + kKnown +
                "; the nearest is \"llama\"");
  EXPECT_EQ(error_of("xlnet-large", Json::object()),
            std::string("model_type \"xlnet-large\" is not supported\n  at: small.json#/model_type\n  try: one of ") + kKnown);
}

// A model without a graph has its parameters counted; planning it is refused.
TEST(ModelSpec, AFamilyWithoutGraphIsCountedAndNotPlanned) {
  const ModelSpec model = model_from_json({{"model_type", "mpt"}}, "small.json", "small");
  EXPECT_GT(parameter_table(model).total_numel(), 0);
  EXPECT_EQ(thrown<ConfigError>([&] { require_graph(model); }),
            "models of type \"mpt\" are counted, but not planned: LayerNorm, scores that fall with distance\n  at: "
            "small.json#/model_type\n"
            "  try: one of llama, mistral, qwen2, qwen3; the nearest is \"llama\"");
}

TEST(ModelSpec, ContradictionsAreRefusedWithTheirPlace) {
  EXPECT_EQ(error_of("llama", {{"hidden_size", 30}}),
            "hidden_size 30 is no multiple of num_attention_heads 4, and there is no head_dim\n  at: small.json#/hidden_size\n"
            "  try: state head_dim, or correct one of the two");
  EXPECT_EQ(error_of("llama", {{"num_key_value_heads", 3}}),
            "4 attention heads cannot share 3 key/value heads evenly\n  at: small.json#/num_key_value_heads\n  try: a divisor of "
            "num_attention_heads");
  EXPECT_EQ(error_of("llama", {{"head_dim", 7}}),
            "head size 7 is odd, rotary embedding turns pairs\n  at: small.json#/head_dim\n  try: an even head_dim");
  EXPECT_EQ(error_of("qwen3", {{"use_sliding_window", true}, {"layer_types", {"full_attention"}}}),
            "1 layer types for 2 layers\n  at: small.json#/layer_types\n  try: one per layer");
  EXPECT_EQ(error_of("qwen2", {{"layer_types", {"sliding_attention", "full_attention"}}}),
            "a layer is sliding_attention, but there is no window\n  at: small.json#/layer_types\n  try: set use_sliding_window "
            "and sliding_window");
  EXPECT_EQ(error_of("llama", {{"pad_token_id", 40}}),
            "pad_token_id 40 is outside the vocabulary of 40\n  at: small.json#/pad_token_id");
}

TEST(ModelSpec, WhatIsNotModelledIsRefusedByName) {
  EXPECT_EQ(
      error_of("llama", {{"rope_scaling", {{"type", "yarn"}, {"factor", 4.0}}}}),
      "rotary embedding of type \"yarn\" is not supported\n  at: small.json#/rope_scaling/type\n  try: default, linear or llama3");
  EXPECT_EQ(error_of("llama", {{"rope_parameters", {{"rope_type", "dynamic"}, {"factor", 2.0}}}}),
            "rotary embedding of type \"dynamic\" is not supported\n  at: small.json#/rope_parameters/rope_type\n  try: default, "
            "linear or llama3");
  EXPECT_EQ(error_of("llama", {{"hidden_act", "gelu"}}),
            "activation \"gelu\" is not supported\n  at: small.json#/hidden_act\n  try: silu");
  EXPECT_EQ(error_of("llama", {{"attention_dropout", 0.1}}),
            "dropout is not supported\n  at: small.json#/attention_dropout\n  try: 0.0");
  EXPECT_EQ(error_of("llama", {{"partial_rotary_factor", 0.5}}),
            "rotary embedding of a part of the head is not supported\n  at: small.json#/partial_rotary_factor");
  EXPECT_EQ(
      error_of("llama", {{"quantization_config", {{"bits", 4}}}}),
      "quantised checkpoints are not supported\n  at: small.json#/quantization_config\n  try: use the unquantised checkpoint");
  EXPECT_EQ(error_of("llama", {{"dtype", "int8"}}),
            "\"int8\" is no floating-point dtype\n  at: small.json#/dtype\n  try: float32, bfloat16 or float16");
}

// Sizes: each of them zero, negative, missing or no number is an error that points at it.
TEST(ModelSpec, EverySizeIsCheckedWhereItStands) {
  for (const std::string key :
       {"hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size"}) {
    for (const Json& bad : {Json(0), Json(-1), Json("8"), Json(1.5)}) {
      const std::string message = error_of("llama", {{key, bad}});
      EXPECT_NE(message.find("small.json#/" + key), std::string::npos) << key << " " << bad << ": " << message;
    }
    if (key == "num_key_value_heads") continue;
    const std::string message =
        thrown<ConfigError>([&] { (void)model_from_json(without(small_config("llama"), key), "small.json", "small"); });
    EXPECT_NE(message.find("small.json"), std::string::npos) << message;
    EXPECT_NE(message.find(key), std::string::npos) << message;
  }
}

// Whatever stands under a key that is read: a model with a table and a graph, or a ConfigError that names the file.
RC_GTEST_PROP(ModelSpec, AnyValueUnderAnyKeyIsReadOrRefused, ()) {
  Json config = small_config(*rc::gen::element<std::string>("llama", "mistral", "qwen2", "qwen3"));
  const std::vector<std::string> keys = {
      "model_type",          "hidden_size",  "intermediate_size",   "num_hidden_layers",       "num_attention_heads",
      "num_key_value_heads", "head_dim",     "vocab_size",          "max_position_embeddings", "rms_norm_eps",
      "rope_theta",          "rope_scaling", "rope_parameters",     "sliding_window",          "use_sliding_window",
      "max_window_layers",   "layer_types",  "tie_word_embeddings", "attention_bias",          "dtype",
      "torch_dtype",         "pad_token_id", "hidden_act"};
  const std::vector<Json> values = {nullptr,
                                    true,
                                    0,
                                    -3,
                                    1,
                                    2,
                                    5,
                                    1000000,
                                    std::int64_t{1} << 40,
                                    1e300,
                                    -0.5,
                                    1.5,
                                    "",
                                    "llama3",
                                    "bfloat16",
                                    Json::array(),
                                    {"full_attention", "sliding_attention"},
                                    Json::object(),
                                    {{"rope_type", "linear"}, {"factor", 2.0}},
                                    {{"type", "llama3"}, {"factor", 8}, {"low_freq_factor", 1}, {"high_freq_factor", 4}},
                                    {{"rope_theta", -1.0}}};
  const int changes = *rc::gen::inRange(1, 4);
  for (int i = 0; i < changes; ++i) config[*rc::gen::elementOf(keys)] = *rc::gen::elementOf(values);
  RC_LOG() << config.dump() << "\n";
  try {
    const ModelSpec model = model_from_json(config, "small.json", "small");
    RC_ASSERT(model.sliding_window.size() == static_cast<std::size_t>(model.num_layers));
    RC_ASSERT(parameter_table(model).total_numel() > 0);
    require_graph(model);
    if (model.num_layers <= 5) RC_ASSERT(build_graph(small_request(model)).num_forward_ops > 0);
  } catch (const ConfigError& error) {
    RC_ASSERT(std::string(error.what()).find("small.json") != std::string::npos);
  }
}

}  // namespace
}  // namespace shardplan
