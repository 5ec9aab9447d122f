#include "planner/graph/families/llama.h"

#include <string_view>
#include <vector>

#include "core/error.h"
#include "planner/graph/families/attention.h"

namespace shardplan {
namespace {

struct LinearWeights {
  ParameterId weight, bias;
};

struct LayerWeights {
  LinearWeights q, k, v, o, gate, up, down;
  ParameterId q_norm, k_norm, input_norm, post_attention_norm;
};

struct ModelWeights {
  ParameterId embedding, final_norm, head;
  std::vector<LayerWeights> layers;
};

// The place of "self_attn.q_proj.weight" and so on in a layer; null for a name that is none of these.
ParameterId* slot_of(LayerWeights& layer, std::string_view name) {
  struct Linear {
    std::string_view prefix;
    LinearWeights LayerWeights::*weights;
  };
  static constexpr Linear kLinears[] = {{"self_attn.q_proj.", &LayerWeights::q}, {"self_attn.k_proj.", &LayerWeights::k},
                                        {"self_attn.v_proj.", &LayerWeights::v}, {"self_attn.o_proj.", &LayerWeights::o},
                                        {"mlp.gate_proj.", &LayerWeights::gate}, {"mlp.up_proj.", &LayerWeights::up},
                                        {"mlp.down_proj.", &LayerWeights::down}};
  for (const Linear& linear : kLinears) {
    if (!name.starts_with(linear.prefix)) continue;
    LinearWeights& weights = layer.*linear.weights;
    return name.ends_with(".bias") ? &weights.bias : &weights.weight;
  }
  if (name == "self_attn.q_norm.weight") return &layer.q_norm;
  if (name == "self_attn.k_norm.weight") return &layer.k_norm;
  if (name == "input_layernorm.weight") return &layer.input_norm;
  if (name == "post_attention_layernorm.weight") return &layer.post_attention_norm;
  return nullptr;
}

ModelWeights weights_of(const ParameterTable& table, std::int64_t num_layers) {
  ModelWeights weights;
  weights.layers.resize(static_cast<std::size_t>(num_layers));
  for (std::size_t i = 0; i < table.parameters.size(); ++i) {
    const Parameter& parameter = table.parameters[i];
    const ParameterId id(static_cast<std::int64_t>(i));
    if (parameter.layer < 0) {
      if (parameter.part == ParameterPart::Embedding) weights.embedding = id;
      if (parameter.part == ParameterPart::FinalNorm) weights.final_norm = id;
      if (parameter.part == ParameterPart::Head) weights.head = id;
      continue;
    }
    // "model.layers.N.rest"
    std::string_view name = parameter.name;
    name.remove_prefix(std::string_view("model.layers.").size());
    name.remove_prefix(name.find('.') + 1);
    ParameterId* slot = slot_of(weights.layers[static_cast<std::size_t>(parameter.layer)], name);
    CHECK(slot != nullptr, "every parameter of a layer has its place: " + parameter.name);
    *slot = id;
  }
  if (table.head_is_tied) weights.head = weights.embedding;
  return weights;
}

class LlamaBuilder {
 public:
  LlamaBuilder(GraphBuilder& build, const ModelSpec& model)
      : build_(build),
        model_(model),
        graph_(build.graph()),
        weights_(weights_of(build.graph().table, model.num_layers)),
        batch_(graph_.micro_batch),
        tokens_(graph_.seq_len) {}

  void run() {
    graph_.ids = build_.outside(StorageRole::Input, "ids", DType::I64, Dims{batch_, tokens_});
    graph_.targets = build_.outside(StorageRole::Input, "targets", DType::I64, Dims{batch_, tokens_});
    build_.at(-1, "rotary_emb");
    rotary_tables();
    build_.at(-1, "attention_mask");
    AttentionMasks masks(build_, model_.sliding_window);
    build_.at(-1, "embed_tokens");
    ValueId h = build_.embedding(build_.parameter(weights_.embedding), graph_.ids, model_.pad_token_id);
    for (std::int32_t layer = 0; layer < model_.num_layers; ++layer) {
      h = attention_half(h, layer, masks);
      h = mlp_half(h, layer);
    }
    h = norm(h, -1, "norm", weights_.final_norm);
    head_and_loss(h);
  }

 private:
  // Tables [1, 1, S, D] in compute dtype, made anew in every forward from fp32 frequencies.
  void rotary_tables() {
    const std::int64_t half = model_.head_dim / 2;
    const ValueId frequencies = build_.outside(StorageRole::Buffer, "inv_freq", DType::F32, Dims{half});
    const ValueId positions = build_.view(build_.arange(tokens_, DType::F32), Dims{1, tokens_, 1});
    const ValueId angles = build_.binary(OpKind::Mul, positions, frequencies);
    const ValueId both = build_.cat(angles, angles, 2);
    const Dims broadcast{1, 1, tokens_, model_.head_dim};
    const ValueId cosines = build_.cast(build_.unary(OpKind::Cos, both), graph_.compute);
    const ValueId sines = build_.cast(build_.unary(OpKind::Sin, both), graph_.compute);
    cos_ = build_.view(cosines, broadcast);
    sin_ = build_.view(sines, broadcast);
  }

  ValueId norm(ValueId h, std::int32_t layer, std::string_view name, ParameterId weight) {
    build_.at(layer, name);
    const DType dtype = build_.value(h).dtype;
    const ValueId x = build_.cast(h, DType::F32);
    const ValueId mean = build_.reduce_last(OpKind::MeanLast, build_.with_scalar(OpKind::PowScalar, x, 2.0));
    const ValueId inverse = build_.unary(OpKind::Rsqrt, build_.with_scalar(OpKind::AddScalar, mean, model_.norm_eps));
    const ValueId normalised = build_.cast(build_.binary(OpKind::Mul, x, inverse), dtype);
    return build_.binary(OpKind::Mul, build_.parameter(weight), normalised);
  }

  ValueId linear(ValueId x, std::int32_t layer, std::string_view name, const LinearWeights& weights) {
    build_.at(layer, name);
    return build_.linear(x, build_.parameter(weights.weight), weights.bias.is_set() ? build_.parameter(weights.bias) : ValueId{});
  }

  ValueId rotate(ValueId x, std::int32_t layer, std::string_view name) {
    build_.at(layer, name);
    const std::int64_t half = model_.head_dim / 2;
    const ValueId straight = build_.binary(OpKind::Mul, x, cos_);
    const ValueId low = build_.slice(x, 3, 0, half), high = build_.slice(x, 3, half, half);
    const ValueId turned = build_.cat(build_.unary(OpKind::Neg, high), low, 3);
    return build_.binary(OpKind::Add, straight, build_.binary(OpKind::Mul, turned, sin_));
  }

  ValueId attention_half(ValueId h, std::int32_t layer, AttentionMasks& masks) {
    const LayerWeights& w = weights_.layers[static_cast<std::size_t>(layer)];
    const std::int64_t size = model_.head_dim;
    const ValueId x = norm(h, layer, "input_layernorm", w.input_norm);
    ValueId q = build_.view(linear(x, layer, "self_attn.q_proj", w.q), Dims{batch_, tokens_, model_.num_heads, size});
    if (model_.qk_norm) q = norm(q, layer, "self_attn.q_norm", w.q_norm);
    q = build_.transpose(q, 1, 2);
    ValueId k = build_.view(linear(x, layer, "self_attn.k_proj", w.k), Dims{batch_, tokens_, model_.num_kv_heads, size});
    if (model_.qk_norm) k = norm(k, layer, "self_attn.k_norm", w.k_norm);
    k = build_.transpose(k, 1, 2);
    const ValueId v = build_.transpose(
        build_.view(linear(x, layer, "self_attn.v_proj", w.v), Dims{batch_, tokens_, model_.num_kv_heads, size}), 1, 2);
    q = rotate(q, layer, "self_attn.q_rotary");
    k = rotate(k, layer, "self_attn.k_rotary");
    build_.at(layer, "self_attn");
    const ValueId out = attend(build_, q, k, v, masks.of_layer(static_cast<std::size_t>(layer)));
    const ValueId projected = linear(out, layer, "self_attn.o_proj", w.o);
    build_.at(layer, "self_attn.residual");
    return build_.binary(OpKind::Add, h, projected);
  }

  ValueId mlp_half(ValueId h, std::int32_t layer) {
    const LayerWeights& w = weights_.layers[static_cast<std::size_t>(layer)];
    const ValueId x = norm(h, layer, "post_attention_layernorm", w.post_attention_norm);
    const ValueId gate = linear(x, layer, "mlp.gate_proj", w.gate);
    build_.at(layer, "mlp.act_fn");
    const ValueId activated = build_.unary(OpKind::Silu, gate);
    const ValueId up = linear(x, layer, "mlp.up_proj", w.up);
    build_.at(layer, "mlp.product");
    const ValueId product = build_.binary(OpKind::Mul, activated, up);
    const ValueId down = linear(product, layer, "mlp.down_proj", w.down);
    build_.at(layer, "mlp.residual");
    return build_.binary(OpKind::Add, h, down);
  }

  void head_and_loss(ValueId h) {
    graph_.logits = linear(h, -1, "lm_head", LinearWeights{weights_.head, {}});
    build_.at(-1, "loss");
    const ValueId scores = build_.cast(graph_.logits, DType::F32);
    ValueId targets = graph_.targets;
    if (graph_.kernels.loss == LossForm::ShiftInLoss) {
      targets = build_.contiguous(build_.slice(build_.pad_last(targets, 0, 1, -100.0), 1, 1, tokens_));
    }
    const ValueId flat = build_.view(scores, Dims{batch_ * tokens_, model_.vocab_size});
    targets = build_.view(targets, Dims{batch_ * tokens_});
    graph_.loss = build_.nll_loss(build_.rowwise(OpKind::LogSoftmax, flat, DType::F32), targets, graph_.kernels.loss).loss;
  }

  GraphBuilder& build_;
  const ModelSpec& model_;
  OpGraph& graph_;
  ModelWeights weights_;
  std::int64_t batch_, tokens_;
  ValueId cos_, sin_;
};

}  // namespace

void build_llama(GraphBuilder& build, const ModelSpec& model) { LlamaBuilder(build, model).run(); }

}  // namespace shardplan
