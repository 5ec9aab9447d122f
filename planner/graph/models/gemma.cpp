// gemma, gemma2, gemma3: scaled embeddings, norms that multiply by 1 + weight, tied heads; four norms a layer from gemma2 on.
#include <fmt/format.h>

#include <cmath>

#include "planner/graph/models/config_parts.h"
#include "planner/graph/models/model_family.h"

namespace shardplan {
namespace {

void read_gemma_kind(JsonReader& reader, const SizeDefaults& defaults, KeyNames activation_keys, ModelSpec& model) {
  read_sizes(reader, defaults, model);
  read_norm_eps(reader, "rms_norm_eps", 1e-6, model);
  read_activation(reader, activation_keys, "gelu_pytorch_tanh", model);
  model.dropout.attention = read_probability(reader, "attention_dropout", 0.0);
  read_common(reader, {.is_tied = true, .pad_token_id = 0}, model);
  model.qkv_bias = model.o_bias = reader.boolean_or("attention_bias", false);
  model.embedding_scale = std::sqrt(static_cast<double>(model.hidden_size));
  windows_everywhere(0, model);
}

double cap_or(JsonReader& reader, const std::string& key, double otherwise) {
  return reader.raw().contains(key) ? reader.number_or(key, 0.0) : otherwise;  // null: none
}

// Layer types where they are stated, else every `pattern`-th layer sees everything.
void read_alternating_windows(JsonReader& reader, std::int64_t pattern, ModelSpec& model) {
  const std::int64_t window = window_or(reader, 4096);
  if (reader.has("layer_types")) return windows_by_layer_types(reader, window, model);
  for (std::int64_t i = 0; i < model.num_layers; ++i)
    model.sliding_window[static_cast<std::size_t>(i)] = (i + 1) % pattern != 0 ? window : 0;
}

// Of layers that see everything, and of those with a window. The newer keys state both, the older ones a frequency each.
void read_two_ropes(JsonReader& reader, ModelSpec& model) {
  model.rope.theta = reader.number_or("rope_theta", 1e6);
  model.local_rope.theta = reader.number_or("rope_local_base_freq", 1e4);
  if (reader.has("rope_parameters")) {
    JsonReader both = reader.object("rope_parameters");
    for (const auto& [key, rope] : {std::pair{"full_attention", &model.rope}, std::pair{"sliding_attention", &model.local_rope}}) {
      if (!both.has(key)) continue;
      JsonReader one = both.object(key);
      read_rope_object(one, model, *rope);
    }
  }
  if (reader.has("rope_scaling")) {
    JsonReader scaling = reader.object("rope_scaling");
    read_rope_object(scaling, model, model.rope);
  }
}

}  // namespace

void read_gemma(JsonReader& reader, ModelSpec& model) {
  read_gemma_kind(reader,
                  {.hidden = 3072,
                   .layers = 28,
                   .mlp = 24576,
                   .vocab = 256000,
                   .positions = 8192,
                   .heads = 16,
                   .kv_heads = 16,
                   .head_dim = 256},
                  {"hidden_act"}, model);
  if (model.activation == "gelu") model.activation = "gelu_pytorch_tanh";  // first releases wrote it so
  read_rope(reader, 1e4, 1.0, model);
}

void read_gemma2(JsonReader& reader, ModelSpec& model) {
  read_gemma_kind(
      reader,
      {.hidden = 2304, .layers = 26, .mlp = 9216, .vocab = 256000, .positions = 8192, .heads = 8, .kv_heads = 4, .head_dim = 256},
      {"hidden_activation"}, model);
  read_rope(reader, 1e4, 1.0, model);
  model.attention_scale = 1.0 / std::sqrt(reader.number_or("query_pre_attn_scalar", 256.0));
  model.attention_cap = cap_or(reader, "attn_logit_softcapping", 50.0);
  model.logits_cap = cap_or(reader, "final_logit_softcapping", 30.0);
  model.norms_per_layer = 4;
  read_alternating_windows(reader, 2, model);
}

void read_gemma3(JsonReader& reader, ModelSpec& model) {
  read_gemma_kind(
      reader,
      {.hidden = 2304, .layers = 26, .mlp = 9216, .vocab = 262208, .positions = 131072, .heads = 8, .kv_heads = 4, .head_dim = 256},
      {"hidden_activation"}, model);
  read_two_ropes(reader, model);
  model.attention_scale = 1.0 / std::sqrt(reader.number_or("query_pre_attn_scalar", 256.0));
  model.attention_cap = cap_or(reader, "attn_logit_softcapping", 0.0);
  model.logits_cap = cap_or(reader, "final_logit_softcapping", 0.0);
  model.norms_per_layer = 4;
  model.qk_norm = true;
  read_alternating_windows(reader, reader.integer_or("sliding_window_pattern", 6, 1), model);
}

void list_gemma(TableWriter& table, const ModelSpec& model) {
  const std::string in_front = model.is_nested ? "language_model." : "";
  table.outside(in_front);
  table.embedding("model.embed_tokens.weight", model.vocab_size, model.hidden_size);
  for (std::int32_t i = 0; i < model.num_layers; ++i) {
    table.layer(i, fmt::format("{}model.layers.{}.", in_front, i));
    table.attention(model.qkv_bias, "o_proj", model.o_bias);
    if (model.qk_norm) {
      table.norm("self_attn.q_norm", model.head_dim, false);
      table.norm("self_attn.k_norm", model.head_dim, false);
    }
    table.gated_mlp("mlp", model.intermediate_size, false);
    table.norm("input_layernorm", model.hidden_size, false);
    table.norm("post_attention_layernorm", model.hidden_size, false);
    if (model.norms_per_layer == 4) {
      table.norm("pre_feedforward_layernorm", model.hidden_size, false);
      table.norm("post_feedforward_layernorm", model.hidden_size, false);
    }
  }
  table.outside(in_front);
  table.norm("model.norm", model.hidden_size, false);
  table.head("lm_head", "lm_head", "model.embed_tokens.weight");
  if (model.is_nested) table.rename(in_front, "");
  table.buffer("model.embed_tokens.embed_scale", {}, model.buffer_dtype, false);
  if (model.family != Family::Gemma3) return table.frequencies("model.rotary_emb.", model.head_dim);
  table.frequencies("model.rotary_emb.full_attention_", model.head_dim);
  table.frequencies("model.rotary_emb.sliding_attention_", model.head_dim);
}

}  // namespace shardplan
