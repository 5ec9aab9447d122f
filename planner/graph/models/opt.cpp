// opt: learned positions with two rows in front, token tables of another width in some, norms behind what they feed in one.
#include <fmt/format.h>

#include "planner/graph/models/config_parts.h"
#include "planner/graph/models/model_family.h"

namespace shardplan {

void read_opt(JsonReader& reader, ModelSpec& model) {
  constexpr std::int64_t kRowsInFront = 2;
  model.hidden_size = size_or(reader, {"hidden_size"}, 768);
  model.embedding_size = size_or(reader, {"word_embed_proj_dim"}, model.hidden_size);
  model.num_layers = size_or(reader, {"num_hidden_layers"}, 12);
  model.vocab_size = size_or(reader, {"vocab_size"}, 50272);
  model.intermediate_size = size_or(reader, {"ffn_dim"}, 3072);
  model.max_position_embeddings = size_or(reader, {"max_position_embeddings"}, 2048);
  model.learned_positions = model.max_position_embeddings + kRowsInFront;
  read_plain_heads(reader, {"num_attention_heads"}, 12, model);
  read_activation(reader, {"activation_function"}, "relu", model);
  const double hidden = read_probability(reader, "dropout", 0.1);
  model.dropout = {.embedding = hidden, .attention = read_probability(reader, "attention_dropout", 0.0), .residual = hidden};
  read_common(reader, {.is_tied = true, .pad_token_id = 1}, model);
  model.initializer_range = reader.number_or("init_std", 0.02);
  windows_everywhere(0, model);
  model.norm_eps = 1e-5;  // of the library: no key states it
  model.norm_before = reader.boolean_or("do_layer_norm_before", true) && !reader.boolean_or("_remove_final_layer_norm", false);
  model.norm_affine = reader.boolean_or("layer_norm_elementwise_affine", true);
  model.qkv_bias = model.o_bias = model.mlp_bias = reader.boolean_or("enable_bias", true);
  if (reader.number_or("layerdrop", 0.0) != 0.0)
    note_gap(reader, model, "layerdrop", "layers that are left out at random are not described", "0.0");
}

void list_opt(TableWriter& table, const ModelSpec& model) {
  const std::int64_t hidden = model.hidden_size, mlp = model.intermediate_size;
  table.outside("model.decoder.");
  table.embedding("embed_tokens.weight", model.vocab_size, model.embedding_size);
  table.tensor("embed_positions.weight", {model.learned_positions, hidden}, ParameterKind::Embedding, ParameterPart::Position);
  if (model.embedding_size != hidden) {
    table.linear("project_out", ParameterPart::Projection, model.embedding_size, hidden, false);
    table.linear("project_in", ParameterPart::Projection, hidden, model.embedding_size, false);
  }
  if (model.norm_before) table.norm("final_layer_norm", hidden, true);
  for (std::int32_t i = 0; i < model.num_layers; ++i) {
    table.layer(i, fmt::format("model.decoder.layers.{}.", i));
    for (const char* name : {"self_attn.k_proj", "self_attn.v_proj", "self_attn.q_proj", "self_attn.out_proj"}) {
      table.linear(name, ParameterPart::Attention, hidden, hidden, model.qkv_bias);
    }
    table.norm("self_attn_layer_norm", hidden, true);
    table.linear("fc1", ParameterPart::Mlp, mlp, hidden, model.mlp_bias);
    table.linear("fc2", ParameterPart::Mlp, hidden, mlp, model.mlp_bias);
    table.norm("final_layer_norm", hidden, true);
  }
  table.outside("");
  table.head("lm_head", "lm_head", "model.decoder.embed_tokens.weight");
}

}  // namespace shardplan
