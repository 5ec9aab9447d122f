// Tiny models of the four families and plans for them, written in a line: what the lowering's tests are about.
#pragma once

#include <rapidcheck.h>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "planner/graph/segments.h"
#include "planner/lowering/lowered_program.h"
#include "planner/search/knobs.h"

namespace shardplan {

struct TinyModel {
  std::string family = "llama";  // model_type
  std::int64_t hidden = 16;
  std::int64_t layers = 2;
  std::int64_t heads = 4;
  std::int64_t kv_heads = 2;
  std::int64_t mlp = 24;
  std::int64_t vocabulary = 37;
  bool tied = false;
  std::int64_t window = 0;  // mistral
};

inline nlohmann::ordered_json tiny_config(const TinyModel& m) {
  nlohmann::ordered_json j;
  const bool is_qwen3 = m.family == "qwen3";
  j["architectures"] = {"ForCausalLM"};
  j["model_type"] = m.family;
  j["hidden_size"] = m.hidden;
  j["num_hidden_layers"] = m.layers;
  j["num_attention_heads"] = m.heads;
  j["num_key_value_heads"] = m.kv_heads;
  j["head_dim"] = is_qwen3 ? 8 : m.hidden / m.heads;
  j["intermediate_size"] = m.mlp;
  j["vocab_size"] = m.vocabulary;
  j["max_position_embeddings"] = 64;
  j["rms_norm_eps"] = 1e-6;
  j["rope_theta"] = 10000.0;
  j["hidden_act"] = "silu";
  j["tie_word_embeddings"] = m.tied;
  j["torch_dtype"] = "float32";
  if (m.family == "mistral")
    j["sliding_window"] = m.window > 0 ? nlohmann::ordered_json(m.window) : nlohmann::ordered_json(nullptr);
  return j;
}

// A plan without decisions, and the graph of its batch shape.
struct TinyCase {
  Plan plan;
  std::shared_ptr<const OpGraph> graph;
  Segments segments;

  [[nodiscard]] Lowered lowered() const { return lower(plan, graph, segments); }
};

struct TinyJob {
  TinyModel model;
  DeviceKind device = DeviceKind::Cpu;
  Precision precision;
  std::vector<std::string> train = {"all"};
  std::int64_t seq_len = 5;
  double clip_norm = 0;
};

inline TinyCase tiny_case(const TinyJob& job, const KnobChoice& choice) {
  TinyCase result;
  Plan& plan = result.plan;
  plan.model_name = "tiny " + job.model.family;
  plan.model_config = tiny_config(job.model);
  plan.hardware_id = job.device == DeviceKind::Cpu ? "local-cpu" : "h100-80g";
  plan.device = job.device;
  plan.workload.precision = job.precision;
  plan.workload.train = job.train;
  plan.workload.seq_len = job.seq_len;
  plan.workload.optimizer.clip_norm = job.clip_norm;
  plan.kernels = kernels_for(job.device, job.precision.compute, job.model.heads != job.model.kv_heads);
  plan.mesh = choice.mesh;
  plan.micro_batch = choice.micro_batch;
  result.graph = std::make_shared<const OpGraph>(build_graph(graph_request_of(plan)));
  result.segments = segments_of(*result.graph);
  apply(choice, result.segments, plan);
  plan.mesh = choice.mesh;
  return result;
}

inline rc::Gen<TinyModel> any_model() {
  return rc::gen::exec([] {
    TinyModel m;
    m.family = *rc::gen::element<std::string>("llama", "mistral", "qwen2", "qwen3");
    m.heads = *rc::gen::element(2, 4);
    m.kv_heads = *rc::gen::element(1, 2);
    m.hidden = m.heads * *rc::gen::element(4, 6, 10);
    m.layers = *rc::gen::inRange(1, 4);
    m.mlp = *rc::gen::inRange(3, 40);
    m.vocabulary = *rc::gen::inRange(5, 60);
    m.tied = *rc::gen::arbitrary<bool>();
    if (m.family == "mistral" && *rc::gen::arbitrary<bool>()) m.window = *rc::gen::inRange(1, 6);
    return m;
  });
}

inline rc::Gen<TinyJob> any_job() {
  return rc::gen::exec([] {
    TinyJob job;
    job.model = *any_model();
    job.device = *rc::gen::element(DeviceKind::Cpu, DeviceKind::Cuda);
    job.precision.compute = *rc::gen::element(DType::F32, DType::BF16);
    job.precision.stored = *rc::gen::element(DType::F32, DType::BF16);
    job.precision.reduce = *rc::gen::element(DType::F32, DType::BF16);
    job.precision.state = *rc::gen::element(DType::F32, DType::BF16);
    job.train = {*rc::gen::element<std::string>("all", "head", "last:1", "norms", "embed")};
    if (job.model.family == "qwen2" && *rc::gen::arbitrary<bool>()) job.train = {"biases"};
    job.seq_len = *rc::gen::inRange(1, 12);
    job.clip_norm = *rc::gen::element(0.0, 1.0);
    return job;
  });
}

inline rc::Gen<KnobChoice> any_choice() {
  return rc::gen::exec([] {
    KnobChoice c;
    c.mesh.shard = *rc::gen::element(1, 2, 3, 4, 7);
    c.mesh.replicate = *rc::gen::element(1, 1, 2, 3);
    c.units = *units_from_text(*rc::gen::element<std::string>("blocks", "blocks:2", "halves", "whole"));
    c.root = *rc::gen::element(RootWord::Joint, RootWord::Split);
    c.reshard = *rc::gen::element(ReshardWord::All, ReshardWord::None, ReshardWord::AllButLast);
    c.recompute = *recompute_from_text(*rc::gen::element<std::string>("none", "full", "blocks:2", "halves:attention", "halves:mlp",
                                                                      "keep:linear", "keep:mul+attention_cpu+attention_flash",
                                                                      "keep:silu+rsqrt"));
    c.micro_batch = *rc::gen::inRange(1, 4);
    c.grad_accum = *rc::gen::element(1, 2, 3, 5);
    c.accum_sync = *rc::gen::element(AccumSync::Every, AccumSync::Last);
    c.prefetch = *rc::gen::inRange(0, 4);
    c.init = *rc::gen::element(InitPath::Simple, InitPath::Delayed);
    return c;
  });
}

}  // namespace shardplan
