// phi: one LayerNorm before attention and MLP, which are added together; biases everywhere, also on the head.
#include <fmt/format.h>

#include "planner/graph/models/config_parts.h"
#include "planner/graph/models/model_family.h"

namespace shardplan {

void read_phi(JsonReader& reader, ModelSpec& model) {
  read_sizes(reader, {.hidden = 2048, .layers = 24, .mlp = 8192, .vocab = 51200, .heads = 32}, model);
  read_norm_eps(reader, "layer_norm_eps", 1e-5, model);
  read_activation(reader, {"hidden_act"}, "gelu_new", model);
  model.dropout = {.embedding = read_probability(reader, "embd_pdrop", 0.0),
                   .attention = read_probability(reader, "attention_dropout", 0.0),
                   .residual = read_probability(reader, "resid_pdrop", 0.0)};
  read_common(reader, {}, model);
  read_rope(reader, 1e4, 0.5, model);
  windows_everywhere(0, model);
  model.qkv_bias = model.o_bias = model.mlp_bias = model.head_bias = true;
  model.qk_norm = reader.boolean_or("qk_layernorm", false);
  model.parallel_residual = true;
  model.norms_per_layer = 1;
}

void list_phi(TableWriter& table, const ModelSpec& model) {
  table.outside("model.");
  table.embedding("embed_tokens.weight", model.vocab_size, model.hidden_size);
  for (std::int32_t i = 0; i < model.num_layers; ++i) {
    table.layer(i, fmt::format("model.layers.{}.", i));
    table.attention(true, "dense", true);
    if (model.qk_norm) {
      table.norm("self_attn.q_layernorm", model.hidden_size / model.num_heads, true);
      table.norm("self_attn.k_layernorm", model.hidden_size / model.num_heads, true);
    }
    table.linear("mlp.fc1", ParameterPart::Mlp, model.intermediate_size, model.hidden_size, true);
    table.linear("mlp.fc2", ParameterPart::Mlp, model.hidden_size, model.intermediate_size, true);
    table.norm("input_layernorm", model.hidden_size, true);
  }
  table.outside("");
  table.norm("model.final_layernorm", model.hidden_size, true);
  table.head("lm_head", "lm_head", "model.embed_tokens.weight");
  table.frequencies("model.rotary_emb.", static_cast<std::int64_t>(static_cast<double>(model.head_dim) * model.rope.share));
}

}  // namespace shardplan
