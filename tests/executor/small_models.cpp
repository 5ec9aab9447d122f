#include "tests/executor/small_models.h"

namespace shardplan {

nlohmann::ordered_json config_of(const SmallModel& m) {
  nlohmann::ordered_json config = {{"model_type", m.type},
                                   {"hidden_size", m.hidden},
                                   {"num_hidden_layers", m.layers},
                                   {"num_attention_heads", m.heads},
                                   {"num_key_value_heads", m.kv_heads},
                                   {"intermediate_size", m.mlp},
                                   {"vocab_size", m.vocab},
                                   {"max_position_embeddings", 512},
                                   {"rms_norm_eps", 1e-6},
                                   {"rope_theta", 10000.0},
                                   {"hidden_act", "silu"},
                                   {"tie_word_embeddings", m.tied}};
  if (m.head_dim > 0) config["head_dim"] = m.head_dim;
  if (m.type == "mistral")
    config["sliding_window"] = m.window > 0 ? nlohmann::ordered_json(m.window) : nlohmann::ordered_json(nullptr);
  return config;
}

GraphRequest request_of(const SmallGraph& g) {
  GraphRequest request;
  request.model = model_from_json(config_of(g.model), "small.json", g.model.type);
  request.table = parameter_table(request.model);
  select_trainable(request.table, request.model, g.train, {});
  request.micro_batch = g.batch;
  request.seq_len = g.seq_len;
  request.compute = g.compute;
  request.kernels = kernels_for(DeviceKind::Cpu, g.compute, g.model.heads != g.model.kv_heads);
  return request;
}

}  // namespace shardplan
