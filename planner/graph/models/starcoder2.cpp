// starcoder2: attention as llama, LayerNorm, an MLP of two matrices.
#include <fmt/format.h>

#include "planner/graph/models/config_parts.h"
#include "planner/graph/models/model_family.h"

namespace shardplan {

void read_starcoder2(JsonReader& reader, ModelSpec& model) {
  read_sizes(reader, {.hidden = 3072, .layers = 30, .mlp = 12288, .vocab = 49152, .positions = 4096, .heads = 24, .kv_heads = 2},
             model);
  read_norm_eps(reader, "norm_epsilon", 1e-5, model);
  read_activation(reader, {"hidden_act"}, "gelu_pytorch_tanh", model);
  model.dropout = {.embedding = read_probability(reader, "embedding_dropout", 0.0),
                   .attention = read_probability(reader, "attention_dropout", 0.0),
                   .residual = read_probability(reader, "residual_dropout", 0.0)};
  read_common(reader, {.is_tied = true}, model);
  read_rope(reader, 1e4, 1.0, model);
  windows_everywhere(window_or(reader, 0), model);
  model.qkv_bias = model.o_bias = model.mlp_bias = reader.boolean_or("use_bias", true);
}

void list_starcoder2(TableWriter& table, const ModelSpec& model) {
  table.outside("model.");
  table.embedding("embed_tokens.weight", model.vocab_size, model.hidden_size);
  for (std::int32_t i = 0; i < model.num_layers; ++i) {
    table.layer(i, fmt::format("model.layers.{}.", i));
    table.attention(model.qkv_bias, "o_proj", model.o_bias);
    table.linear("mlp.c_fc", ParameterPart::Mlp, model.intermediate_size, model.hidden_size, model.mlp_bias);
    table.linear("mlp.c_proj", ParameterPart::Mlp, model.hidden_size, model.intermediate_size, model.mlp_bias);
    table.norm("input_layernorm", model.hidden_size, true);
    table.norm("post_attention_layernorm", model.hidden_size, true);
  }
  table.outside("");
  table.norm("model.norm", model.hidden_size, true);
  table.head("lm_head", "lm_head", "model.embed_tokens.weight");
  table.frequencies("model.rotary_emb.", static_cast<std::int64_t>(static_cast<double>(model.head_dim) * model.rope.share));
}

}  // namespace shardplan
