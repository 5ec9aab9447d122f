#include "planner/graph/models/table_writer.h"

#include <fmt/format.h>

namespace shardplan {

void TableWriter::layer(std::int32_t index, std::string prefix) {
  layer_ = index;
  prefix_ = std::move(prefix);
}

void TableWriter::outside(std::string prefix) { layer(-1, std::move(prefix)); }

void TableWriter::tensor(std::string_view name, std::vector<std::int64_t> shape, ParameterKind kind, ParameterPart part) {
  table_.parameters.push_back(
      {.name = prefix_ + std::string(name), .shape = std::move(shape), .kind = kind, .part = part, .layer = layer_});
}

void TableWriter::linear(const std::string& name, ParameterPart part, std::int64_t out, std::int64_t in, bool has_bias) {
  tensor(name + ".weight", {out, in}, ParameterKind::Matrix, part);
  if (has_bias) tensor(name + ".bias", {out}, ParameterKind::Bias, part);
}

void TableWriter::norm(const std::string& name, std::vector<std::int64_t> shape, bool has_bias) {
  if (!model_.norm_affine) return;
  const ParameterPart part = layer_ < 0 ? ParameterPart::FinalNorm : ParameterPart::LayerNorm;
  tensor(name + ".weight", shape, ParameterKind::Norm, part);
  if (has_bias) tensor(name + ".bias", std::move(shape), ParameterKind::Bias, part);
}

void TableWriter::attention(bool qkv_bias, std::string_view out_name, bool out_bias) {
  const std::int64_t hidden = model_.hidden_size, q = model_.num_heads * model_.head_dim,
                     kv = model_.num_kv_heads * model_.head_dim;
  linear("self_attn.q_proj", ParameterPart::Attention, q, hidden, qkv_bias);
  linear("self_attn.k_proj", ParameterPart::Attention, kv, hidden, qkv_bias);
  linear("self_attn.v_proj", ParameterPart::Attention, kv, hidden, qkv_bias);
  linear("self_attn." + std::string(out_name), ParameterPart::Attention, hidden, q, out_bias);
}

void TableWriter::gated_mlp(const std::string& name, std::int64_t size, bool has_bias) {
  linear(name + ".gate_proj", ParameterPart::Mlp, size, model_.hidden_size, has_bias);
  linear(name + ".up_proj", ParameterPart::Mlp, size, model_.hidden_size, has_bias);
  linear(name + ".down_proj", ParameterPart::Mlp, model_.hidden_size, size, has_bias);
}

void TableWriter::experts(const ExpertNames& names) {
  const std::int64_t count = model_.experts.count, size = model_.experts.size, hidden = model_.hidden_size;
  for (std::int64_t e = 0; e < count; ++e) {
    const std::string expert = fmt::format("{}.{}.", names.disk, e);
    const std::size_t first = table_.parameters.size();
    linear(expert + names.gate, ParameterPart::Mlp, size, hidden, false);
    linear(expert + names.up, ParameterPart::Mlp, size, hidden, false);
    linear(expert + names.down, ParameterPart::Mlp, hidden, size, false);
    for (std::size_t i = first; i < table_.parameters.size(); ++i) table_.parameters[i].expert = static_cast<std::int32_t>(e);
  }
  table_.num_fused += 3 * count;
  for (const auto& [name, shape] : {std::pair{"mlp.experts.gate_up_proj", std::vector<std::int64_t>{count, 2 * size, hidden}},
                                    std::pair{"mlp.experts.down_proj", std::vector<std::int64_t>{count, hidden, size}}}) {
    table_.module_tensors.push_back({.name = prefix_ + name, .shape = shape, .part = ParameterPart::Mlp, .layer = layer_});
  }
}

void TableWriter::renamed_in_module(const std::string& disk, const std::string& module) {
  for (const Parameter& parameter : table_.parameters) {
    if (parameter.name != prefix_ + disk) continue;
    Parameter renamed = parameter;
    renamed.name = prefix_ + module;
    table_.module_tensors.push_back(std::move(renamed));
    ++table_.num_fused;
    return;
  }
}

void TableWriter::head(const std::string& disk, const std::string& module, const std::string& embedding) {
  table_.head_is_tied = model_.tied_embeddings;
  table_.head_name = module + ".weight";
  table_.embedding_name = embedding;
  if (!model_.tied_embeddings)
    tensor(disk + ".weight", {model_.vocab_size, model_.embedding_size}, ParameterKind::Matrix, ParameterPart::Head);
  if (model_.head_bias) tensor(disk + ".bias", {model_.vocab_size}, ParameterKind::Bias, ParameterPart::Head);
}

void TableWriter::frequencies(const std::string& module_name, std::int64_t turned_size) {
  // transformers 5 keeps a second copy of the frequencies beside those in use.
  for (const char* copy : {"inv_freq", "original_inv_freq"}) buffer(module_name + copy, {(turned_size + 1) / 2}, DType::F32, false);
}

void TableWriter::buffer(std::string name, std::vector<std::int64_t> shape, DType dtype, bool is_persistent) {
  table_.buffers.push_back({.name = std::move(name), .shape = std::move(shape), .dtype = dtype, .is_persistent = is_persistent});
}

}  // namespace shardplan
