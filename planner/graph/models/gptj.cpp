// gptj: one LayerNorm before attention and MLP, which are added together; projections of attention without bias, a head with one.
#include <fmt/format.h>

#include "planner/graph/models/config_parts.h"
#include "planner/graph/models/model_family.h"

namespace shardplan {

void read_gptj(JsonReader& reader, ModelSpec& model) {
  model.hidden_size = model.embedding_size = size_or(reader, {"n_embd", "hidden_size"}, 4096);
  model.num_layers = size_or(reader, {"n_layer", "num_hidden_layers"}, 28);
  model.vocab_size = size_or(reader, {"vocab_size"}, 50400);
  model.max_position_embeddings = size_or(reader, {"n_positions", "max_position_embeddings"}, 2048);
  read_plain_heads(reader, {"n_head", "num_attention_heads"}, 16, model);
  model.intermediate_size = size_or(reader, {"n_inner"}, 4 * model.hidden_size);
  read_norm_eps(reader, "layer_norm_epsilon", 1e-5, model);
  read_activation(reader, {"activation_function"}, "gelu_new", model);
  model.dropout = {.embedding = read_probability(reader, "embd_pdrop", 0.0),
                   .attention = read_probability(reader, "attn_pdrop", 0.0),
                   .residual = read_probability(reader, "resid_pdrop", 0.0)};
  read_common(reader, {}, model);
  model.pad_token_id = -1;  // no row of its table is left out
  windows_everywhere(0, model);
  // Null: all of the hidden size.
  const std::int64_t turned = reader.raw().contains("rotary_dim") ? reader.integer_or("rotary_dim", model.hidden_size, 1) : 64;
  model.rope.share = static_cast<double>(turned) / static_cast<double>(model.head_dim);
  model.mlp_bias = model.head_bias = true;
  model.parallel_residual = true;
  model.norms_per_layer = 1;
}

void list_gptj(TableWriter& table, const ModelSpec& model) {
  const std::int64_t hidden = model.hidden_size, mlp = model.intermediate_size;
  table.outside("transformer.");
  table.embedding("wte.weight", model.vocab_size, hidden);
  for (std::int32_t i = 0; i < model.num_layers; ++i) {
    table.layer(i, fmt::format("transformer.h.{}.", i));
    table.norm("ln_1", hidden, true);
    for (const char* name : {"attn.k_proj", "attn.v_proj", "attn.q_proj", "attn.out_proj"})
      table.linear(name, ParameterPart::Attention, hidden, hidden, false);
    table.linear("mlp.fc_in", ParameterPart::Mlp, mlp, hidden, true);
    table.linear("mlp.fc_out", ParameterPart::Mlp, hidden, mlp, true);
  }
  table.outside("");
  table.norm("transformer.ln_f", hidden, true);
  table.head("lm_head", "lm_head", "transformer.wte.weight");
  const auto turned = static_cast<std::int64_t>(model.rope.share * static_cast<double>(model.head_dim) + 0.5);
  table.buffer("transformer.rotary_emb.embed_positions", {model.max_position_embeddings, turned}, DType::F32, false);
}

}  // namespace shardplan
