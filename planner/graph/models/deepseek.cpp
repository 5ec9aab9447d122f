// deepseek_v2, deepseek_v3: attention through low-rank factors, experts after the first plain layers, always with a shared one.
#include <fmt/format.h>

#include "planner/graph/models/config_parts.h"
#include "planner/graph/models/model_family.h"

namespace shardplan {
namespace {

struct DeepseekDefaults {
  SizeDefaults sizes;
  std::int64_t experts, shared_experts, expert_size, per_token, plain_layers;
};

void read_deepseek(JsonReader& reader, const DeepseekDefaults& defaults, ModelSpec& model) {
  read_sizes(reader, defaults.sizes, model);
  read_norm_eps(reader, "rms_norm_eps", 1e-6, model);
  read_activation(reader, {"hidden_act"}, "silu", model);
  model.dropout.attention = read_probability(reader, "attention_dropout", 0.0);
  read_common(reader, {}, model);
  read_rope(reader, 10000.0, 1.0, model);
  windows_everywhere(0, model);
  model.o_bias = reader.boolean_or("attention_bias", false);
  // An absent rank has a default of its own; null means one matrix.
  const std::int64_t q_rank = reader.raw().contains("q_lora_rank") ? reader.integer_or("q_lora_rank", 0, 1) : 1536;
  model.latent = {.q_rank = q_rank,
                  .kv_rank = size_or(reader, {"kv_lora_rank"}, 512),
                  .plain_dim = size_or(reader, {"qk_nope_head_dim"}, 128),
                  .rotary_dim = size_or(reader, {"qk_rope_head_dim"}, 64),
                  .value_dim = size_or(reader, {"v_head_dim"}, 128)};
  model.head_dim = model.latent.plain_dim + model.latent.rotary_dim;
  const std::int64_t size = size_or(reader, {"moe_intermediate_size"}, defaults.expert_size);
  model.experts = {.count = size_or(reader, {"n_routed_experts", "num_experts", "num_local_experts"}, defaults.experts),
                   .per_token = reader.integer_or("num_experts_per_tok", defaults.per_token, 1),
                   .size = size,
                   .shared_size = size * size_or(reader, {"n_shared_experts"}, defaults.shared_experts)};
  const std::int64_t first = reader.integer_or("first_k_dense_replace", defaults.plain_layers, 0);
  for (std::int64_t i = 0; i < model.num_layers; ++i) model.experts.in_layer.push_back(i >= first);
}

void list_latent_attention(TableWriter& table, const ModelSpec& model) {
  const LatentSpec& latent = model.latent;
  const std::int64_t hidden = model.hidden_size, heads = model.num_heads, qk = latent.plain_dim + latent.rotary_dim;
  const auto linear = [&](const char* name, std::int64_t out, std::int64_t in, bool has_bias) {
    table.linear(std::string("self_attn.") + name, ParameterPart::Attention, out, in, has_bias);
  };
  if (latent.q_rank == 0) {
    linear("q_proj", heads * qk, hidden, false);
  } else {
    linear("q_a_proj", latent.q_rank, hidden, model.o_bias);
    table.norm("self_attn.q_a_layernorm", latent.q_rank, false);
    linear("q_b_proj", heads * qk, latent.q_rank, false);
  }
  linear("kv_a_proj_with_mqa", latent.kv_rank + latent.rotary_dim, hidden, model.o_bias);
  table.norm("self_attn.kv_a_layernorm", latent.kv_rank, false);
  linear("kv_b_proj", heads * (latent.plain_dim + latent.value_dim), latent.kv_rank, false);
  linear("o_proj", hidden, heads * latent.value_dim, model.o_bias);
}

}  // namespace

void read_deepseek_v2(JsonReader& reader, ModelSpec& model) {
  read_deepseek(reader,
                {.sizes = {.hidden = 4096, .layers = 32, .mlp = 11008, .vocab = 102400, .heads = 32},
                 .experts = 64,
                 .shared_experts = 2,
                 .expert_size = 1407,
                 .per_token = 1,
                 .plain_layers = 0},
                model);
  model.mlp_bias = reader.boolean_or("mlp_bias", false);
}

void read_deepseek_v3(JsonReader& reader, ModelSpec& model) {
  read_deepseek(
      reader,
      {.sizes = {.hidden = 7168, .layers = 61, .mlp = 18432, .vocab = 129280, .positions = 4096, .heads = 128, .kv_heads = 128},
       .experts = 256,
       .shared_experts = 1,
       .expert_size = 2048,
       .per_token = 8,
       .plain_layers = 3},
      model);
}

void list_deepseek(TableWriter& table, const ModelSpec& model) {
  table.outside("model.");
  table.embedding("embed_tokens.weight", model.vocab_size, model.hidden_size);
  for (std::int32_t i = 0; i < model.num_layers; ++i) {
    const std::string prefix = fmt::format("model.layers.{}.", i);
    table.layer(i, prefix);
    list_latent_attention(table, model);
    if (model.experts.in_layer[static_cast<std::size_t>(i)]) {
      table.linear("mlp.gate", ParameterPart::Mlp, model.experts.count, model.hidden_size, false);
      table.experts({"mlp.experts", "gate_proj", "up_proj", "down_proj"});
      table.gated_mlp("mlp.shared_experts", model.experts.shared_size, model.mlp_bias);
      if (model.family == Family::DeepseekV3)
        table.buffer(prefix + "mlp.gate.e_score_correction_bias", {model.experts.count}, DType::F32, true);
    } else {
      table.gated_mlp("mlp", model.intermediate_size, model.mlp_bias);
    }
    table.norm("input_layernorm", model.hidden_size, false);
    table.norm("post_attention_layernorm", model.hidden_size, false);
  }
  table.outside("");
  table.norm("model.norm", model.hidden_size, false);
  table.head("lm_head", "lm_head", "model.embed_tokens.weight");
  table.frequencies("model.rotary_emb.", model.latent.rotary_dim);
}

}  // namespace shardplan
