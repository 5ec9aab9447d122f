#include "tests/planner/graph/small_graphs.h"

namespace shardplan::testing_graph {

using Json = nlohmann::ordered_json;

Json small_config(const std::string& model_type, const Json& changes) {
  Json config = {
      {"model_type", model_type}, {"hidden_size", 32},        {"intermediate_size", 48}, {"num_hidden_layers", 2},
      {"num_attention_heads", 4}, {"num_key_value_heads", 2}, {"vocab_size", 40},        {"max_position_embeddings", 64}};
  if (model_type == "mistral") config["sliding_window"] = nullptr;
  config.update(changes);
  return config;
}

ModelSpec small_model(const std::string& model_type, const Json& changes) {
  return model_from_json(small_config(model_type, changes), "small.json", "small");
}

GraphRequest small_request(const ModelSpec& model) {
  return {.model = model,
          .table = parameter_table(model),
          .micro_batch = 2,
          .seq_len = 12,
          .compute = DType::F32,
          .kernels = kernels_for(DeviceKind::Cpu, DType::F32, model.num_heads != model.num_kv_heads)};
}

namespace {

Kernels arbitrary_kernels(DType compute, bool is_grouped) {
  const DeviceKind device = *rc::gen::element(DeviceKind::Cpu, DeviceKind::Cuda);
  Kernels kernels = kernels_for(device, compute, is_grouped);
  const auto composed = *rc::gen::inRange(0, 4);
  if (composed == 0) kernels.attention = AttentionKernel::Eager;
  if (composed == 1) kernels.attention = AttentionKernel::Math;
  kernels.grouped_attention = kernels.grouped_attention && kernels.attention != AttentionKernel::Eager;
  kernels.loss = *rc::gen::element(LossForm::TargetsGiven, LossForm::ShiftInLoss);
  kernels.padding_mask = *rc::gen::arbitrary<bool>();
  kernels.mask_per_layer = *rc::gen::arbitrary<bool>();
  return kernels;
}

}  // namespace

rc::Gen<GraphRequest> arbitrary_request() {
  return rc::gen::exec([] {
    const std::string type = *rc::gen::element<std::string>("llama", "mistral", "qwen2", "qwen3");
    const int kv_heads = *rc::gen::inRange(1, 4), times = *rc::gen::inRange(1, 4), head_dim = 2 * *rc::gen::inRange(1, 7);
    Json changes = {{"num_hidden_layers", *rc::gen::inRange(1, 4)},
                    {"num_key_value_heads", kv_heads},
                    {"num_attention_heads", kv_heads * times},
                    {"head_dim", head_dim},
                    {"hidden_size", 4 * *rc::gen::inRange(1, 9)},
                    {"intermediate_size", *rc::gen::inRange(1, 40)},
                    {"tie_word_embeddings", *rc::gen::arbitrary<bool>()},
                    {"attention_bias", *rc::gen::arbitrary<bool>()},
                    {"mlp_bias", *rc::gen::arbitrary<bool>()}};
    if (type == "mistral" && *rc::gen::arbitrary<bool>()) changes["sliding_window"] = *rc::gen::inRange(1, 20);
    const ModelSpec model = small_model(type, changes);
    GraphRequest request = small_request(model);
    request.micro_batch = *rc::gen::inRange(1, 4);
    request.seq_len = *rc::gen::inRange(1, 20);
    request.compute = *rc::gen::element(DType::F32, DType::BF16);
    request.kernels = arbitrary_kernels(request.compute, times > 1);
    const std::string word = *rc::gen::element<std::string>("all", "head", "embed", "last:1", "norms", "regex:q_proj");
    select_trainable(request.table, model, {word}, {});
    return request;
  });
}

std::string text_from(const GraphRequest& request) {
  std::string text = request.model.config.dump() + " B " + std::to_string(request.micro_batch) + " S " +
                     std::to_string(request.seq_len) + " " + std::string(dtype_name(request.compute)) + " attention " +
                     std::to_string(static_cast<int>(request.kernels.attention)) + " device " +
                     std::to_string(static_cast<int>(request.kernels.device)) + " trains";
  for (const Parameter& p : request.table.parameters) text += p.trainable ? " " + p.name : "";
  return text;
}

}  // namespace shardplan::testing_graph
