// mixtral, qwen2_moe, qwen3_moe: decoders of the llama kind whose MLP is a choice of experts in some or all layers.
#include <fmt/format.h>

#include <algorithm>

#include "planner/graph/models/config_parts.h"
#include "planner/graph/models/model_family.h"

namespace shardplan {
namespace {

void read_decoder(JsonReader& reader, const SizeDefaults& defaults, double theta, ModelSpec& model) {
  read_sizes(reader, defaults, model);
  read_activation(reader, {"hidden_act"}, "silu", model);
  model.dropout.attention = read_probability(reader, "attention_dropout", 0.0);
  read_common(reader, {}, model);
  read_rope(reader, theta, 1.0, model);
  windows_everywhere(0, model);
}

// Every `decoder_sparse_step`-th layer has experts, but for those that mlp_only_layers names.
void read_sparse_layers(JsonReader& reader, ModelSpec& model) {
  const std::int64_t step = reader.integer_or("decoder_sparse_step", 1, 1);
  const std::vector<std::int64_t> plain =
      reader.has("mlp_only_layers") ? reader.integers("mlp_only_layers") : std::vector<std::int64_t>{};
  for (std::int64_t i = 0; i < model.num_layers; ++i) {
    model.experts.in_layer.push_back((i + 1) % step == 0 && std::find(plain.begin(), plain.end(), i) == plain.end());
  }
}

void list_decoder(TableWriter& table, const ModelSpec& model, void (*list_mlp)(TableWriter&, const ModelSpec&, std::size_t layer)) {
  table.outside("model.");
  table.embedding("embed_tokens.weight", model.vocab_size, model.hidden_size);
  for (std::int32_t i = 0; i < model.num_layers; ++i) {
    table.layer(i, fmt::format("model.layers.{}.", i));
    table.attention(model.qkv_bias, "o_proj", model.o_bias);
    if (model.qk_norm) {
      table.norm("self_attn.q_norm", model.head_dim, false);
      table.norm("self_attn.k_norm", model.head_dim, false);
    }
    list_mlp(table, model, static_cast<std::size_t>(i));
    table.norm("input_layernorm", model.hidden_size, false);
    table.norm("post_attention_layernorm", model.hidden_size, false);
  }
  table.outside("");
  table.norm("model.norm", model.hidden_size, false);
  table.head("lm_head", "lm_head", "model.embed_tokens.weight");
  table.frequencies("model.rotary_emb.", static_cast<std::int64_t>(static_cast<double>(model.head_dim) * model.rope.share));
}

void list_router(TableWriter& table, const ModelSpec& model, const std::string& name) {
  table.linear(name, ParameterPart::Mlp, model.experts.count, model.hidden_size, false);
}

}  // namespace

void read_mixtral(JsonReader& reader, ModelSpec& model) {
  read_decoder(reader,
               {.hidden = 4096, .layers = 32, .mlp = 14336, .vocab = 32000, .positions = 131072, .heads = 32, .kv_heads = 8}, 1e6,
               model);
  read_norm_eps(reader, "rms_norm_eps", 1e-5, model);
  windows_everywhere(window_or(reader, 0), model);
  model.experts = {.count = size_or(reader, {"num_local_experts", "num_experts"}, 8),
                   .per_token = reader.integer_or("num_experts_per_tok", 2, 1),
                   .size = model.intermediate_size,
                   .in_layer = std::vector<bool>(static_cast<std::size_t>(model.num_layers), true)};
}

void list_mixtral(TableWriter& table, const ModelSpec& model) {
  list_decoder(table, model, [](TableWriter& t, const ModelSpec& m, std::size_t) {
    list_router(t, m, "block_sparse_moe.gate");
    t.renamed_in_module("block_sparse_moe.gate.weight", "mlp.gate.weight");
    t.experts({"block_sparse_moe.experts", "w1", "w3", "w2"});
  });
}

void read_qwen2_moe(JsonReader& reader, ModelSpec& model) {
  read_decoder(reader,
               {.hidden = 2048, .layers = 24, .mlp = 5632, .vocab = 151936, .positions = 32768, .heads = 16, .kv_heads = 16}, 1e4,
               model);
  read_norm_eps(reader, "rms_norm_eps", 1e-6, model);
  model.qkv_bias = reader.boolean_or("qkv_bias", true);
  model.experts = {.count = size_or(reader, {"num_experts"}, 60),
                   .per_token = reader.integer_or("num_experts_per_tok", 4, 1),
                   .size = size_or(reader, {"moe_intermediate_size"}, 1408),
                   .shared_size = size_or(reader, {"shared_expert_intermediate_size"}, 5632)};
  read_sparse_layers(reader, model);
  const bool has_windows = reader.boolean_or("use_sliding_window", false);
  const std::int64_t window = has_windows ? window_or(reader, 4096) : 0;
  if (reader.has("layer_types")) return windows_by_layer_types(reader, window, model);
  const std::int64_t end = std::min(model.num_layers, reader.integer_or("max_window_layers", 28, 0));
  for (std::int64_t i = 0; i < end; i += 2) model.sliding_window[static_cast<std::size_t>(i)] = window;
}

void list_qwen2_moe(TableWriter& table, const ModelSpec& model) {
  list_decoder(table, model, [](TableWriter& t, const ModelSpec& m, std::size_t layer) {
    if (!m.experts.in_layer[layer]) return t.gated_mlp("mlp", m.intermediate_size, false);
    list_router(t, m, "mlp.gate");
    t.experts({"mlp.experts", "gate_proj", "up_proj", "down_proj"});
    t.gated_mlp("mlp.shared_expert", m.experts.shared_size, false);
    t.linear("mlp.shared_expert_gate", ParameterPart::Mlp, 1, m.hidden_size, false);
  });
}

void read_qwen3_moe(JsonReader& reader, ModelSpec& model) {
  read_decoder(reader, {.hidden = 2048, .layers = 24, .mlp = 6144, .vocab = 151936, .positions = 32768, .heads = 32, .kv_heads = 4},
               1e4, model);
  read_norm_eps(reader, "rms_norm_eps", 1e-6, model);
  model.qkv_bias = model.o_bias = reader.boolean_or("attention_bias", false);
  model.qk_norm = true;
  model.experts = {.count = size_or(reader, {"num_experts", "num_local_experts"}, 128),
                   .per_token = reader.integer_or("num_experts_per_tok", 8, 1),
                   .size = size_or(reader, {"moe_intermediate_size"}, 768)};
  read_sparse_layers(reader, model);
  windows_everywhere(reader.boolean_or("use_sliding_window", false) ? window_or(reader, 4096) : 0, model);
}

void list_qwen3_moe(TableWriter& table, const ModelSpec& model) {
  list_decoder(table, model, [](TableWriter& t, const ModelSpec& m, std::size_t layer) {
    if (!m.experts.in_layer[layer]) return t.gated_mlp("mlp", m.intermediate_size, false);
    list_router(t, m, "mlp.gate");
    t.experts({"mlp.experts", "gate_proj", "up_proj", "down_proj"});
  });
}

}  // namespace shardplan
