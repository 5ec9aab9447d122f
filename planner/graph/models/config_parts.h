// What the configs of several families say in the same way.
#pragma once

#include <initializer_list>
#include <string>

#include "core/json_reader.h"
#include "planner/graph/model_spec.h"

namespace shardplan {

using KeyNames = std::initializer_list<const char*>;  // in order of preference

// 0: the key must be there.
struct SizeDefaults {
  std::int64_t hidden = 0, layers = 0, mlp = 0, vocab = 0, positions = 2048;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;  // 0: as many as heads
  std::int64_t head_dim = 0;  // 0: hidden size / heads
};

// A size under the first of `keys` that is there; `otherwise` 0: under the first key, or an error.
[[nodiscard]] std::int64_t size_or(JsonReader& reader, KeyNames keys, std::int64_t otherwise);

// hidden, layers, MLP, vocabulary, positions, heads, under the keys that most families use.
void read_sizes(JsonReader& reader, const SizeDefaults& defaults, ModelSpec& model);
// Heads alone, after the hidden size.
void read_heads(JsonReader& reader, const SizeDefaults& defaults, ModelSpec& model);
// As many key/value heads as heads, each an equal part of the hidden size.
void read_plain_heads(JsonReader& reader, KeyNames keys, std::int64_t otherwise, ModelSpec& model);

// Of the gate or the MLP: "silu", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu", or as written.
void read_activation(JsonReader& reader, KeyNames keys, std::string otherwise, ModelSpec& model);
void read_norm_eps(JsonReader& reader, const std::string& key, double otherwise, ModelSpec& model);
[[nodiscard]] double read_probability(JsonReader& reader, const std::string& key, double otherwise);

// Rotary embedding, keys of both generations.
void read_rope(JsonReader& reader, double theta, double share, ModelSpec& model);
// Of one object with the newer keys.
void read_rope_object(JsonReader& rope_reader, ModelSpec& model, RopeSpec& rope);

// One window for every layer, or by layer_types. `window` 0: none.
void windows_everywhere(std::int64_t window, ModelSpec& model);
void windows_by_layer_types(JsonReader& reader, std::int64_t window, ModelSpec& model);
[[nodiscard]] std::int64_t window_or(JsonReader& reader, std::int64_t otherwise);  // null: 0

// Tie, padding row, initial range.
struct CommonDefaults {
  bool is_tied = false;
  std::int64_t pad_token_id = -1;
};
void read_common(JsonReader& reader, const CommonDefaults& defaults, ModelSpec& model);

// Notes the first thing of the config that the graph builders do not describe.
void note_gap(JsonReader& reader, ModelSpec& model, const std::string& key, std::string problem, std::string remedy = "");

}  // namespace shardplan
