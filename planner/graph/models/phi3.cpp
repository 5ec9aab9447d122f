// phi3: as llama, with one matrix for queries, keys and values, and one for gate and up.
#include <fmt/format.h>

#include "planner/graph/models/config_parts.h"
#include "planner/graph/models/model_family.h"

namespace shardplan {

void read_phi3(JsonReader& reader, ModelSpec& model) {
  read_sizes(reader, {.hidden = 3072, .layers = 32, .mlp = 8192, .vocab = 32064, .positions = 4096, .heads = 32}, model);
  read_norm_eps(reader, "rms_norm_eps", 1e-5, model);
  read_activation(reader, {"hidden_act"}, "silu", model);
  // embd_pdrop is in the files, but nothing reads it.
  model.dropout = {.attention = read_probability(reader, "attention_dropout", 0.0),
                   .residual = read_probability(reader, "resid_pdrop", 0.0)};
  read_common(reader, {.pad_token_id = 32000}, model);
  read_rope(reader, 1e4, 1.0, model);
  windows_everywhere(window_or(reader, 0), model);
}

void list_phi3(TableWriter& table, const ModelSpec& model) {
  const std::int64_t hidden = model.hidden_size, mlp = model.intermediate_size, q = model.num_heads * model.head_dim,
                     kv = model.num_kv_heads * model.head_dim;
  table.outside("model.");
  table.embedding("embed_tokens.weight", model.vocab_size, hidden);
  for (std::int32_t i = 0; i < model.num_layers; ++i) {
    table.layer(i, fmt::format("model.layers.{}.", i));
    table.linear("self_attn.o_proj", ParameterPart::Attention, hidden, q, false);
    table.linear("self_attn.qkv_proj", ParameterPart::Attention, q + 2 * kv, hidden, false);
    table.linear("mlp.gate_up_proj", ParameterPart::Mlp, 2 * mlp, hidden, false);
    table.linear("mlp.down_proj", ParameterPart::Mlp, hidden, mlp, false);
    table.norm("input_layernorm", hidden, false);
    table.norm("post_attention_layernorm", hidden, false);
  }
  table.outside("");
  table.norm("model.norm", hidden, false);
  table.head("lm_head", "lm_head", "model.embed_tokens.weight");
  table.frequencies("model.rotary_emb.", static_cast<std::int64_t>(static_cast<double>(model.head_dim) * model.rope.share));
}

}  // namespace shardplan
