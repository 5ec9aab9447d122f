// falcon: queries with few or one key and value head in one matrix, attention and MLP added together, one or two norms in front.
#include <fmt/format.h>

#include "planner/graph/models/config_parts.h"
#include "planner/graph/models/model_family.h"

namespace shardplan {

void read_falcon(JsonReader& reader, ModelSpec& model) {
  model.hidden_size = model.embedding_size = size_or(reader, {"n_embed", "hidden_size"}, 4544);
  model.num_layers = size_or(reader, {"num_hidden_layers", "n_layer"}, 32);
  model.vocab_size = size_or(reader, {"vocab_size"}, 65024);
  model.max_position_embeddings = size_or(reader, {"max_position_embeddings"}, 2048);
  read_plain_heads(reader, {"num_attention_heads", "n_head"}, 71, model);
  model.intermediate_size = size_or(reader, {"ffn_hidden_size"}, 4 * model.hidden_size);
  const bool is_new = reader.boolean_or("new_decoder_architecture", false);
  if (is_new) model.num_kv_heads = size_or(reader, {"num_kv_heads"}, model.num_heads);
  if (!is_new && reader.boolean_or("multi_query", true)) model.num_kv_heads = 1;
  read_norm_eps(reader, "layer_norm_epsilon", 1e-5, model);
  read_activation(reader, {"activation"}, "gelu", model);
  const double hidden = read_probability(reader, "hidden_dropout", 0.0);
  model.dropout = {.attention = read_probability(reader, "attention_dropout", 0.0), .residual = hidden};
  read_common(reader, {.is_tied = true}, model);
  model.pad_token_id = -1;  // no row of its table is left out
  read_rope(reader, 1e4, 1.0, model);
  windows_everywhere(0, model);
  model.qkv_bias = model.o_bias = model.mlp_bias = reader.boolean_or("bias", false);
  model.parallel_residual = reader.boolean_or("parallel_attn", true);
  model.norms_per_layer = model.parallel_residual ? reader.integer_or("num_ln_in_parallel_attn", is_new ? 2 : 1, 1) : 2;
  if (reader.boolean_or("alibi", false))
    note_gap(reader, model, "alibi", "scores that fall with distance are not described", "false");
}

void list_falcon(TableWriter& table, const ModelSpec& model) {
  const std::int64_t hidden = model.hidden_size, mlp = model.intermediate_size;
  table.outside("transformer.");
  table.embedding("word_embeddings.weight", model.vocab_size, hidden);
  for (std::int32_t i = 0; i < model.num_layers; ++i) {
    table.layer(i, fmt::format("transformer.h.{}.", i));
    table.linear("self_attention.query_key_value", ParameterPart::Attention,
                 (model.num_heads + 2 * model.num_kv_heads) * model.head_dim, hidden, model.qkv_bias);
    table.linear("self_attention.dense", ParameterPart::Attention, hidden, hidden, model.o_bias);
    table.linear("mlp.dense_h_to_4h", ParameterPart::Mlp, mlp, hidden, model.mlp_bias);
    table.linear("mlp.dense_4h_to_h", ParameterPart::Mlp, hidden, mlp, model.mlp_bias);
    if (model.parallel_residual && model.norms_per_layer == 2) {
      table.norm("ln_attn", hidden, true);
      table.norm("ln_mlp", hidden, true);
      continue;
    }
    if (!model.parallel_residual) table.norm("post_attention_layernorm", hidden, true);
    table.norm("input_layernorm", hidden, true);
  }
  table.outside("");
  table.norm("transformer.ln_f", hidden, true);
  table.head("lm_head", "lm_head", "transformer.word_embeddings.weight");
  table.frequencies("transformer.rotary_emb.", model.head_dim);
}

}  // namespace shardplan
