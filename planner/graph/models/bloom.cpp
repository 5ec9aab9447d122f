// bloom: scores that fall with distance, a norm behind the embedding; published files lack the module's "transformer.".
#include <fmt/format.h>

#include "planner/graph/models/config_parts.h"
#include "planner/graph/models/model_family.h"

namespace shardplan {

void read_bloom(JsonReader& reader, ModelSpec& model) {
  model.hidden_size = model.embedding_size = size_or(reader, {"n_embed", "hidden_size"}, 64);
  model.num_layers = size_or(reader, {"n_layer", "num_hidden_layers"}, 2);
  model.vocab_size = size_or(reader, {"vocab_size"}, 250880);
  model.max_position_embeddings = size_or(reader, {"seq_length"}, 2048);
  read_plain_heads(reader, {"n_head", "num_attention_heads"}, 8, model);
  model.intermediate_size = 4 * model.hidden_size;
  read_norm_eps(reader, "layer_norm_epsilon", 1e-5, model);
  model.activation = "bloom_gelu";
  model.dropout = {.attention = read_probability(reader, "attention_dropout", 0.0),
                   .residual = read_probability(reader, "hidden_dropout", 0.0)};
  read_common(reader, {.is_tied = true}, model);
  model.pad_token_id = -1;  // no row of its table is left out
  windows_everywhere(0, model);
  model.qkv_bias = model.o_bias = model.mlp_bias = true;
}

void list_bloom(TableWriter& table, const ModelSpec& model) {
  const std::int64_t hidden = model.hidden_size, mlp = model.intermediate_size;
  table.outside("");
  table.embedding("word_embeddings.weight", model.vocab_size, hidden);
  table.norm("word_embeddings_layernorm", hidden, true);
  for (std::int32_t i = 0; i < model.num_layers; ++i) {
    table.layer(i, fmt::format("h.{}.", i));
    table.norm("input_layernorm", hidden, true);
    table.linear("self_attention.query_key_value", ParameterPart::Attention, 3 * hidden, hidden, true);
    table.linear("self_attention.dense", ParameterPart::Attention, hidden, hidden, true);
    table.norm("post_attention_layernorm", hidden, true);
    table.linear("mlp.dense_h_to_4h", ParameterPart::Mlp, mlp, hidden, true);
    table.linear("mlp.dense_4h_to_h", ParameterPart::Mlp, hidden, mlp, true);
  }
  table.outside("");
  table.norm("ln_f", hidden, true);
  table.head("lm_head", "lm_head", "transformer.word_embeddings.weight");
  table.rename("", "transformer.");
}

}  // namespace shardplan
