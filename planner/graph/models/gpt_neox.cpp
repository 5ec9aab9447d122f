// gpt_neox: rotary embedding of a part of the head, attention and MLP added together; the head of its files is "embed_out".
#include <fmt/format.h>

#include "planner/graph/models/config_parts.h"
#include "planner/graph/models/model_family.h"

namespace shardplan {

void read_gpt_neox(JsonReader& reader, ModelSpec& model) {
  model.hidden_size = model.embedding_size = size_or(reader, {"hidden_size"}, 6144);
  model.num_layers = size_or(reader, {"num_hidden_layers"}, 44);
  model.vocab_size = size_or(reader, {"vocab_size"}, 50432);
  model.intermediate_size = size_or(reader, {"intermediate_size"}, 24576);
  model.max_position_embeddings = size_or(reader, {"max_position_embeddings"}, 2048);
  read_plain_heads(reader, {"num_attention_heads"}, 64, model);
  read_norm_eps(reader, "layer_norm_eps", 1e-5, model);
  read_activation(reader, {"hidden_act"}, "gelu", model);
  const double hidden = read_probability(reader, "hidden_dropout", 0.0);
  model.dropout = {.embedding = hidden, .attention = read_probability(reader, "attention_dropout", 0.0), .residual = hidden};
  read_common(reader, {}, model);
  model.pad_token_id = -1;  // no row of its table is left out
  read_rope(reader, reader.number_or("rotary_emb_base", 1e4), reader.number_or("rotary_pct", 0.25), model);
  windows_everywhere(0, model);
  model.qkv_bias = model.o_bias = reader.boolean_or("attention_bias", true);
  model.mlp_bias = true;
  model.parallel_residual = reader.boolean_or("use_parallel_residual", true);
}

void list_gpt_neox(TableWriter& table, const ModelSpec& model) {
  const std::int64_t hidden = model.hidden_size, mlp = model.intermediate_size;
  table.outside("gpt_neox.");
  table.embedding("embed_in.weight", model.vocab_size, hidden);
  for (std::int32_t i = 0; i < model.num_layers; ++i) {
    table.layer(i, fmt::format("gpt_neox.layers.{}.", i));
    table.norm("input_layernorm", hidden, true);
    table.norm("post_attention_layernorm", hidden, true);
    table.linear("attention.query_key_value", ParameterPart::Attention, 3 * hidden, hidden, model.qkv_bias);
    table.linear("attention.dense", ParameterPart::Attention, hidden, hidden, model.o_bias);
    table.linear("mlp.dense_h_to_4h", ParameterPart::Mlp, mlp, hidden, true);
    table.linear("mlp.dense_4h_to_h", ParameterPart::Mlp, hidden, mlp, true);
  }
  table.outside("");
  table.norm("gpt_neox.final_layer_norm", hidden, true);
  table.head("embed_out", "lm_head", "gpt_neox.embed_in.weight");
  table.rename("embed_out.", "lm_head.");
  table.frequencies("gpt_neox.rotary_emb.", static_cast<std::int64_t>(static_cast<double>(model.head_dim) * model.rope.share));
}

}  // namespace shardplan
