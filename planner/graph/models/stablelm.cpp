// stablelm: as llama with LayerNorm and rotary embedding of a part of the head; some with one norm a layer or norms of every head.
#include <fmt/format.h>

#include "planner/graph/models/config_parts.h"
#include "planner/graph/models/model_family.h"

namespace shardplan {

void read_stablelm(JsonReader& reader, ModelSpec& model) {
  read_sizes(reader, {.hidden = 2560, .layers = 32, .mlp = 6912, .vocab = 50304, .positions = 4096, .heads = 32, .kv_heads = 32},
             model);
  read_norm_eps(reader, "layer_norm_eps", 1e-5, model);
  read_activation(reader, {"hidden_act"}, "silu", model);
  model.dropout = {.attention = read_probability(reader, "attention_dropout", 0.0),
                   .residual = read_probability(reader, "hidden_dropout", 0.0)};
  read_common(reader, {}, model);
  read_rope(reader, 1e4, 0.25, model);
  windows_everywhere(0, model);
  model.qkv_bias = reader.boolean_or("use_qkv_bias", false);
  model.qk_norm = reader.boolean_or("qk_layernorm", false);
  model.parallel_residual = reader.boolean_or("use_parallel_residual", false);
  model.norms_per_layer = model.parallel_residual ? 1 : 2;
}

void list_stablelm(TableWriter& table, const ModelSpec& model) {
  table.outside("model.");
  table.embedding("embed_tokens.weight", model.vocab_size, model.hidden_size);
  for (std::int32_t i = 0; i < model.num_layers; ++i) {
    table.layer(i, fmt::format("model.layers.{}.", i));
    table.attention(model.qkv_bias, "o_proj", false);
    if (model.qk_norm) {
      for (std::int64_t head = 0; head < model.num_heads; ++head)
        table.norm(fmt::format("self_attn.q_layernorm.norms.{}", head), model.head_dim, false);
      for (std::int64_t head = 0; head < model.num_kv_heads; ++head)
        table.norm(fmt::format("self_attn.k_layernorm.norms.{}", head), model.head_dim, false);
    }
    table.gated_mlp("mlp", model.intermediate_size, false);
    table.norm("input_layernorm", model.hidden_size, true);
    if (model.norms_per_layer == 2) table.norm("post_attention_layernorm", model.hidden_size, true);
  }
  table.outside("");
  table.norm("model.norm", model.hidden_size, true);
  table.head("lm_head", "lm_head", "model.embed_tokens.weight");
  table.frequencies("model.rotary_emb.", static_cast<std::int64_t>(static_cast<double>(model.head_dim) * model.rope.share));
}

}  // namespace shardplan
