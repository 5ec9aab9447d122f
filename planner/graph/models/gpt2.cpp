// gpt2: learned positions, LayerNorm, matrices stored [in, out]; published files lack the module's "transformer.".
#include <fmt/format.h>

#include "planner/graph/models/config_parts.h"
#include "planner/graph/models/model_family.h"

namespace shardplan {

void read_gpt2(JsonReader& reader, ModelSpec& model) {
  model.hidden_size = model.embedding_size = size_or(reader, {"n_embd", "hidden_size"}, 768);
  model.num_layers = size_or(reader, {"n_layer", "num_hidden_layers"}, 12);
  model.vocab_size = size_or(reader, {"vocab_size"}, 50257);
  model.max_position_embeddings = model.learned_positions = size_or(reader, {"n_positions", "max_position_embeddings"}, 1024);
  read_plain_heads(reader, {"n_head", "num_attention_heads"}, 12, model);
  model.intermediate_size = size_or(reader, {"n_inner"}, 4 * model.hidden_size);
  read_norm_eps(reader, "layer_norm_epsilon", 1e-5, model);
  read_activation(reader, {"activation_function"}, "gelu_new", model);
  model.dropout = {.embedding = read_probability(reader, "embd_pdrop", 0.1),
                   .attention = read_probability(reader, "attn_pdrop", 0.1),
                   .residual = read_probability(reader, "resid_pdrop", 0.1)};
  read_common(reader, {.is_tied = true}, model);
  model.pad_token_id = -1;  // no row of its table is left out
  windows_everywhere(0, model);
  model.qkv_bias = model.o_bias = model.mlp_bias = true;
  if (!reader.boolean_or("scale_attn_weights", true))
    note_gap(reader, model, "scale_attn_weights", "attention without its scale is not described", "true");
  for (const char* key : {"scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn"}) {
    if (reader.boolean_or(key, false)) note_gap(reader, model, key, fmt::format("{} is not described", key), "false");
  }
  if (reader.boolean_or("add_cross_attention", false))
    reader.fail("add_cross_attention", "attention to another sequence is not supported", "false");
}

void list_gpt2(TableWriter& table, const ModelSpec& model) {
  const std::int64_t hidden = model.hidden_size, mlp = model.intermediate_size;
  const auto conv1d = [&](const std::string& name, ParameterPart part, std::int64_t in, std::int64_t out) {
    table.tensor(name + ".weight", {in, out}, ParameterKind::Matrix, part);
    table.tensor(name + ".bias", {out}, ParameterKind::Bias, part);
  };
  table.outside("");
  table.embedding("wte.weight", model.vocab_size, hidden);
  table.tensor("wpe.weight", {model.learned_positions, hidden}, ParameterKind::Embedding, ParameterPart::Position);
  for (std::int32_t i = 0; i < model.num_layers; ++i) {
    table.layer(i, fmt::format("h.{}.", i));
    table.norm("ln_1", hidden, true);
    conv1d("attn.c_attn", ParameterPart::Attention, hidden, 3 * hidden);
    conv1d("attn.c_proj", ParameterPart::Attention, hidden, hidden);
    table.norm("ln_2", hidden, true);
    conv1d("mlp.c_fc", ParameterPart::Mlp, hidden, mlp);
    conv1d("mlp.c_proj", ParameterPart::Mlp, mlp, hidden);
  }
  table.outside("");
  table.norm("ln_f", hidden, true);
  table.head("lm_head", "lm_head", "transformer.wte.weight");
  table.rename("", "transformer.");
}

}  // namespace shardplan
