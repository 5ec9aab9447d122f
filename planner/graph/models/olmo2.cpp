// olmo2: norms behind attention and MLP instead of before them, and over all queries and all keys.
#include <fmt/format.h>

#include "planner/graph/models/config_parts.h"
#include "planner/graph/models/model_family.h"

namespace shardplan {

void read_olmo2(JsonReader& reader, ModelSpec& model) {
  read_sizes(reader, {.hidden = 4096, .layers = 32, .mlp = 11008, .vocab = 50304, .heads = 32}, model);
  read_norm_eps(reader, "rms_norm_eps", 1e-5, model);
  read_activation(reader, {"hidden_act"}, "silu", model);
  model.dropout.attention = read_probability(reader, "attention_dropout", 0.0);
  read_common(reader, {.pad_token_id = 1}, model);
  read_rope(reader, 1e4, 1.0, model);
  windows_everywhere(0, model);
  model.qkv_bias = model.o_bias = reader.boolean_or("attention_bias", false);
  model.qk_norm = true;
}

void list_olmo2(TableWriter& table, const ModelSpec& model) {
  table.outside("model.");
  table.embedding("embed_tokens.weight", model.vocab_size, model.hidden_size);
  for (std::int32_t i = 0; i < model.num_layers; ++i) {
    table.layer(i, fmt::format("model.layers.{}.", i));
    table.attention(model.qkv_bias, "o_proj", model.o_bias);
    table.norm("self_attn.q_norm", model.num_heads * model.head_dim, false);
    table.norm("self_attn.k_norm", model.num_kv_heads * model.head_dim, false);
    table.gated_mlp("mlp", model.intermediate_size, false);
    table.norm("post_attention_layernorm", model.hidden_size, false);
    table.norm("post_feedforward_layernorm", model.hidden_size, false);
  }
  table.outside("");
  table.norm("model.norm", model.hidden_size, false);
  table.head("lm_head", "lm_head", "model.embed_tokens.weight");
  table.frequencies("model.rotary_emb.", static_cast<std::int64_t>(static_cast<double>(model.head_dim) * model.rope.share));
}

}  // namespace shardplan
