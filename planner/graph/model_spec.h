// A Hugging Face config.json, normalised: one spelling for every fact, defaults resolved, both generations of keys read.
//
// Keeps the original document for write-back. Leaves out what training does not need (generation settings, token names).
// Errors: ConfigError with the JSON pointer for missing, malformed or contradictory fields; for an unknown model_type the
// supported ones and the nearest. What is read but has no graph is kept as a gap, for require_graph.
// Source: transformers 5.24 configuration classes; keys of both generations as in docs/models.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/dtype.h"

namespace shardplan {

enum class Family : std::uint8_t {
  Llama,
  Mistral,
  Mixtral,
  Qwen2,
  Qwen2Moe,
  Qwen3,
  Qwen3Moe,
  DeepseekV2,
  DeepseekV3,
  Gemma,
  Gemma2,
  Gemma3,
  Phi,
  Phi3,
  Gpt2,
  GptNeox,
  Gptj,
  Opt,
  Falcon,
  Bloom,
  Mpt,
  Starcoder2,
  Olmo2,
  Granite,
  Cohere,
  StableLm,
};

struct RopeSpec {
  double theta = 10000.0;
  std::string type = "default";  // "default", "linear", "llama3"; others are refused by name
  double factor = 1.0;
  double low_freq_factor = 1.0;                       // llama3
  double high_freq_factor = 4.0;                      // llama3
  std::int64_t original_max_position_embeddings = 0;  // llama3
  double share = 1.0;                                 // of the head that turns
  bool operator==(const RopeSpec&) const = default;
};

// Routed experts in place of a layer's MLP. count 0: none anywhere.
struct ExpertsSpec {
  std::int64_t count = 0;
  std::int64_t per_token = 0;
  std::int64_t size = 0;         // hidden size of one expert
  std::int64_t shared_size = 0;  // of the expert that every token visits, 0: none
  std::vector<bool> in_layer;    // by layer
};

// Attention through low-rank factors (DeepSeek). kv_rank 0: ordinary attention.
struct LatentSpec {
  std::int64_t q_rank = 0;  // 0: queries in one matrix
  std::int64_t kv_rank = 0;
  std::int64_t plain_dim = 0;   // part of a query/key head that does not turn
  std::int64_t rotary_dim = 0;  // part that turns
  std::int64_t value_dim = 0;
};

// Probabilities of being dropped.
struct DropoutSpec {
  double embedding = 0.0, attention = 0.0, residual = 0.0;
};

// What the graph builders do not describe. Parameters are counted all the same; planning is refused.
struct GraphGap {
  std::string problem, where, remedy;
};

struct ModelSpec {
  std::string name;        // alias, directory name or file stem
  std::string model_type;  // as published
  Family family = Family::Llama;
  std::int64_t hidden_size = 0;
  std::int64_t num_layers = 0;
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t vocab_size = 0;
  std::int64_t max_position_embeddings = 0;
  std::int64_t embedding_size = 0;     // width of the token table; hidden_size but for some of opt
  std::int64_t learned_positions = 0;  // rows of a table of positions, 0: none
  double norm_eps = 1e-6;
  std::string activation = "silu";
  bool qkv_bias = false;
  bool o_bias = false;
  bool mlp_bias = false;
  bool head_bias = false;
  bool norm_affine = true;  // norms have parameters
  bool qk_norm = false;
  bool parallel_residual = false;  // attention and MLP read the same stream and are added together
  std::int64_t norms_per_layer = 2;
  bool norm_before = true;  // norms stand before what they feed, and a final norm ends the model
  bool tied_embeddings = false;
  RopeSpec rope;
  RopeSpec local_rope;  // of layers with a window, gemma3
  double embedding_scale = 1.0, residual_scale = 1.0, logits_scale = 1.0;
  double attention_scale = 0.0;                  // 0: one over the root of the head size
  double attention_cap = 0.0, logits_cap = 0.0;  // cap * tanh(x / cap); 0: none
  DropoutSpec dropout;
  ExpertsSpec experts;
  LatentSpec latent;
  // Per layer: window in tokens, 0 = full causal attention.
  std::vector<std::int64_t> sliding_window;
  DType checkpoint_dtype = DType::F32;
  std::int64_t pad_token_id = -1;  // -1: none; its row of the embedding gets no gradient
  double initializer_range = 0.02;
  DType buffer_dtype = DType::F32;  // of constants that follow the module's dtype
  bool is_nested = false;           // the text part of a larger model
  std::int64_t vision_numel = 0;    // parameters beside the text part, which are not in its table
  std::optional<GraphGap> graph_gap;
  nlohmann::ordered_json config;  // the document as it was read
};

[[nodiscard]] ModelSpec model_from_json(const nlohmann::ordered_json& config, const std::string& file, const std::string& name);

// ConfigError when there is a gap.
void require_graph(const ModelSpec& model);

// `model`: a directory with config.json, a config.json, an alias of configs/models (letters and digits alone count), or a
// hub id ORG/NAME[@revision] in the local cache. UsageError says what was tried, the nearest aliases and the download command.
struct FoundModel {
  ModelSpec spec;
  std::filesystem::path directory;  // empty when only a config is there
};
[[nodiscard]] FoundModel find_model(const std::string& model, const std::filesystem::path& model_configs);
[[nodiscard]] std::vector<std::string> model_aliases(const std::filesystem::path& model_configs);

}  // namespace shardplan
