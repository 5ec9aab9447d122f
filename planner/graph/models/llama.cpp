// llama, mistral, qwen2, qwen3, granite: one tree of modules; biases, norms of queries and keys, windows and factors differ.
#include <fmt/format.h>

#include "planner/graph/models/config_parts.h"
#include "planner/graph/models/model_family.h"

namespace shardplan {
namespace {

void read_as_llama(JsonReader& reader, const SizeDefaults& defaults, ModelSpec& model) {
  read_sizes(reader, defaults, model);
  read_norm_eps(reader, "rms_norm_eps", 1e-6, model);
  read_activation(reader, {"hidden_act"}, "silu", model);
  if (model.activation != "silu")
    note_gap(reader, model, "hidden_act", fmt::format("activation \"{}\" is not supported", model.activation), "silu");
  model.dropout.attention = read_probability(reader, "attention_dropout", 0.0);
  if (model.dropout.attention != 0.0) note_gap(reader, model, "attention_dropout", "dropout is not supported", "0.0");
  read_common(reader, {}, model);
  read_rope(reader, 10000.0, 1.0, model);
  if (model.rope.share != 1.0)
    note_gap(reader, model, "partial_rotary_factor", "rotary embedding of a part of the head is not supported");
  windows_everywhere(0, model);
}

void read_qwen_windows(JsonReader& reader, ModelSpec& model) {
  const std::int64_t window = reader.boolean_or("use_sliding_window", false) ? window_or(reader, 4096) : 0;
  const std::int64_t first = reader.integer_or("max_window_layers", 28, 0);
  if (reader.has("layer_types")) return windows_by_layer_types(reader, window, model);
  for (std::int64_t i = first; i < model.num_layers; ++i) model.sliding_window[static_cast<std::size_t>(i)] = window;
}

}  // namespace

void read_llama(JsonReader& reader, ModelSpec& model) {
  read_as_llama(reader, {}, model);
  model.qkv_bias = model.o_bias = reader.boolean_or("attention_bias", false);
  model.mlp_bias = reader.boolean_or("mlp_bias", false);
}

void read_mistral(JsonReader& reader, ModelSpec& model) {
  read_as_llama(reader, {.positions = 131072, .kv_heads = 8}, model);
  windows_everywhere(window_or(reader, 4096), model);
}

void read_qwen2(JsonReader& reader, ModelSpec& model) {
  read_as_llama(reader, {.positions = 32768, .kv_heads = 32}, model);
  model.qkv_bias = true;
  read_qwen_windows(reader, model);
}

void read_qwen3(JsonReader& reader, ModelSpec& model) {
  read_as_llama(reader, {.positions = 32768, .kv_heads = 32, .head_dim = 128}, model);
  model.qkv_bias = model.o_bias = reader.boolean_or("attention_bias", false);
  model.qk_norm = true;
  read_qwen_windows(reader, model);
}

void read_granite(JsonReader& reader, ModelSpec& model) {
  read_as_llama(reader, {.hidden = 4096, .layers = 32, .mlp = 11008, .vocab = 32000, .heads = 32}, model);
  model.qkv_bias = model.o_bias = reader.boolean_or("attention_bias", false);
  model.mlp_bias = reader.boolean_or("mlp_bias", false);
  model.embedding_scale = reader.number_or("embedding_multiplier", 1.0);
  model.residual_scale = reader.number_or("residual_multiplier", 1.0);
  model.attention_scale = reader.number_or("attention_multiplier", 1.0);
  model.logits_scale = 1.0 / reader.number_or("logits_scaling", 1.0);
}

void list_llama(TableWriter& table, const ModelSpec& model) {
  table.outside("model.");
  table.embedding("embed_tokens.weight", model.vocab_size, model.hidden_size);
  for (std::int32_t i = 0; i < model.num_layers; ++i) {
    table.layer(i, fmt::format("model.layers.{}.", i));
    table.attention(model.qkv_bias, "o_proj", model.o_bias);
    if (model.qk_norm) {
      table.norm("self_attn.q_norm", model.head_dim, false);
      table.norm("self_attn.k_norm", model.head_dim, false);
    }
    table.gated_mlp("mlp", model.intermediate_size, model.mlp_bias);
    table.norm("input_layernorm", model.hidden_size, false);
    table.norm("post_attention_layernorm", model.hidden_size, false);
  }
  table.outside("");
  table.norm("model.norm", model.hidden_size, false);
  table.head("lm_head", "lm_head", "model.embed_tokens.weight");
  table.frequencies("model.rotary_emb.", static_cast<std::int64_t>(static_cast<double>(model.head_dim) * model.rope.share));
}

}  // namespace shardplan
