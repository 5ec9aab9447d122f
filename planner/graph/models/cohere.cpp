// cohere: one LayerNorm without bias before attention and MLP, which are added together; scaled logits, a tied head.
#include <fmt/format.h>

#include "planner/graph/models/config_parts.h"
#include "planner/graph/models/model_family.h"

namespace shardplan {

void read_cohere(JsonReader& reader, ModelSpec& model) {
  read_sizes(reader, {.hidden = 8192, .layers = 40, .mlp = 22528, .vocab = 256000, .positions = 8192, .heads = 64}, model);
  read_norm_eps(reader, "layer_norm_eps", 1e-5, model);
  read_activation(reader, {"hidden_act"}, "silu", model);
  model.dropout.attention = read_probability(reader, "attention_dropout", 0.0);
  read_common(reader, {.is_tied = true, .pad_token_id = 0}, model);
  read_rope(reader, 5e5, 1.0, model);
  windows_everywhere(0, model);
  model.qkv_bias = model.o_bias = reader.boolean_or("attention_bias", false);
  model.qk_norm = reader.boolean_or("use_qk_norm", false);
  model.logits_scale = reader.number_or("logit_scale", 0.0625);
  model.parallel_residual = true;
  model.norms_per_layer = 1;
}

void list_cohere(TableWriter& table, const ModelSpec& model) {
  table.outside("model.");
  table.embedding("embed_tokens.weight", model.vocab_size, model.hidden_size);
  for (std::int32_t i = 0; i < model.num_layers; ++i) {
    table.layer(i, fmt::format("model.layers.{}.", i));
    table.attention(model.qkv_bias, "o_proj", model.o_bias);
    if (model.qk_norm) {
      table.norm("self_attn.q_norm", {model.num_heads, model.head_dim}, false);
      table.norm("self_attn.k_norm", {model.num_kv_heads, model.head_dim}, false);
    }
    table.gated_mlp("mlp", model.intermediate_size, false);
    table.norm("input_layernorm", model.hidden_size, false);
  }
  table.outside("");
  table.norm("model.norm", model.hidden_size, false);
  table.head("lm_head", "lm_head", "model.embed_tokens.weight");
  table.frequencies("model.rotary_emb.", model.head_dim);
}

}  // namespace shardplan
