// A Hugging Face config.json, normalised: one spelling for every fact, defaults resolved, both generations of keys read.
//
// Keeps the original document for write-back. Leaves out what training does not need (generation settings, token names).
// Errors: ConfigError with the JSON pointer for missing, malformed or contradictory fields; for an unknown model_type the
// supported ones and the nearest.
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

enum class Family : std::uint8_t { Llama, Mistral, Qwen2, Qwen3 };

struct RopeSpec {
  double theta = 10000.0;
  std::string type = "default";  // "default", "linear", "llama3"; others are refused by name
  double factor = 1.0;
  double low_freq_factor = 1.0;   // llama3
  double high_freq_factor = 4.0;  // llama3
  std::int64_t original_max_position_embeddings = 0;  // llama3
  bool operator==(const RopeSpec&) const = default;
};

struct ModelSpec {
  std::string name;          // alias, directory name or file stem
  std::string model_type;    // as published
  Family family = Family::Llama;
  std::int64_t hidden_size = 0;
  std::int64_t num_layers = 0;
  std::int64_t num_heads = 0;
  std::int64_t num_kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t intermediate_size = 0;
  std::int64_t vocab_size = 0;
  std::int64_t max_position_embeddings = 0;
  double rms_norm_eps = 1e-6;
  std::string activation = "silu";
  bool qkv_bias = false;
  bool o_bias = false;
  bool mlp_bias = false;
  bool qk_norm = false;
  bool tied_embeddings = false;
  RopeSpec rope;
  // Per layer: window in tokens, 0 = full causal attention.
  std::vector<std::int64_t> sliding_window;
  DType checkpoint_dtype = DType::F32;
  std::int64_t pad_token_id = -1;  // -1: none; its row of the embedding gets no gradient
  double initializer_range = 0.02;
  nlohmann::ordered_json config;  // the document as it was read
};

[[nodiscard]] ModelSpec model_from_json(const nlohmann::ordered_json& config, const std::string& file, const std::string& name);

// `model`: a directory with config.json, a config.json, an alias of configs/models (letters and digits alone count), or a
// hub id ORG/NAME[@revision] in the local cache. UsageError says what was tried, the nearest aliases and the download command.
struct FoundModel {
  ModelSpec spec;
  std::filesystem::path directory;  // empty when only a config is there
};
[[nodiscard]] FoundModel find_model(const std::string& model, const std::filesystem::path& model_configs);
[[nodiscard]] std::vector<std::string> model_aliases(const std::filesystem::path& model_configs);

}  // namespace shardplan
