// mpt: scores that fall with distance, no bias anywhere. The published class has no learned positions, an MLP of four times the
// hidden size and norms without bias, whatever the config says.
#include <fmt/format.h>

#include "planner/graph/models/config_parts.h"
#include "planner/graph/models/model_family.h"

namespace shardplan {

void read_mpt(JsonReader& reader, ModelSpec& model) {
  model.hidden_size = model.embedding_size = size_or(reader, {"d_model", "hidden_size"}, 2048);
  model.num_layers = size_or(reader, {"n_layers", "num_hidden_layers"}, 24);
  model.vocab_size = size_or(reader, {"vocab_size"}, 50368);
  model.max_position_embeddings = size_or(reader, {"max_seq_len"}, 2048);
  read_plain_heads(reader, {"n_heads", "num_attention_heads"}, 16, model);
  model.intermediate_size = 4 * model.hidden_size;
  read_norm_eps(reader, "layer_norm_epsilon", 1e-5, model);
  model.activation = "gelu";
  model.dropout.residual = read_probability(reader, "resid_pdrop", 0.0);
  if (reader.has("attn_config")) {
    JsonReader attention = reader.object("attn_config");
    model.dropout.attention = read_probability(attention, "attn_pdrop", 0.0);
    if (attention.has("clip_qkv"))
      note_gap(attention, model, "clip_qkv", "clipped queries, keys and values are not described", "null");
    if (attention.has("softmax_scale")) model.attention_scale = attention.number("softmax_scale");
  }
  read_common(reader, {.is_tied = true}, model);
  model.pad_token_id = -1;  // no row of its table is left out
  windows_everywhere(0, model);
}

void list_mpt(TableWriter& table, const ModelSpec& model) {
  const std::int64_t hidden = model.hidden_size, mlp = model.intermediate_size;
  table.outside("transformer.");
  table.embedding("wte.weight", model.vocab_size, hidden);
  for (std::int32_t i = 0; i < model.num_layers; ++i) {
    table.layer(i, fmt::format("transformer.blocks.{}.", i));
    table.norm("norm_1", hidden, false);
    table.linear("attn.Wqkv", ParameterPart::Attention, 3 * hidden, hidden, false);
    table.linear("attn.out_proj", ParameterPart::Attention, hidden, hidden, false);
    table.norm("norm_2", hidden, false);
    table.linear("ffn.up_proj", ParameterPart::Mlp, mlp, hidden, false);
    table.linear("ffn.down_proj", ParameterPart::Mlp, hidden, mlp, false);
  }
  table.outside("");
  table.norm("transformer.norm_f", hidden, false);
  table.head("lm_head", "lm_head", "transformer.wte.weight");
}

}  // namespace shardplan
