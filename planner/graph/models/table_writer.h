// Writes a parameter table: tensors of one layer after another, and the parts that several families share.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "planner/graph/parameter_table.h"

namespace shardplan {

class TableWriter {
 public:
  TableWriter(const ModelSpec& model, ParameterTable& table) : model_(model), table_(table) {}

  // Names that follow get this in front: everything of layer `index`, or of no layer.
  void layer(std::int32_t index, std::string prefix);
  void outside(std::string prefix);

  void tensor(std::string_view name, std::vector<std::int64_t> shape, ParameterKind kind, ParameterPart part);
  void linear(const std::string& name, ParameterPart part, std::int64_t out, std::int64_t in, bool has_bias);
  void embedding(std::string_view name, std::int64_t rows, std::int64_t width) {
    tensor(name, {rows, width}, ParameterKind::Embedding, ParameterPart::Embedding);
  }
  // A norm over the last `size` elements; nothing when the model's norms have no parameters.
  void norm(const std::string& name, std::int64_t size, bool has_bias) { norm(name, std::vector<std::int64_t>{size}, has_bias); }
  void norm(const std::string& name, std::vector<std::int64_t> shape, bool has_bias);

  // q, k, v, o of the llama kind, under "self_attn.".
  void attention(bool qkv_bias, std::string_view out_name, bool out_bias);
  // gate, up, down under `name`.
  void gated_mlp(const std::string& name, std::int64_t size, bool has_bias);
  // Routed experts in the file, each with its own matrices, and the two tensors that stand for all of them in memory.
  struct ExpertNames {
    std::string disk, gate, up, down;  // "mlp.experts", "gate_proj", "up_proj", "down_proj"
  };
  void experts(const ExpertNames& names);
  // Other parameters of the file that the module knows by another name.
  void renamed_in_module(const std::string& disk, const std::string& module);

  // The output projection under its module name; only its bias when the weight is the embedding's.
  void head(const std::string& disk, const std::string& module, const std::string& embedding);

  void frequencies(const std::string& module_name, std::int64_t turned_size);  // both copies, by "inv_freq"
  void buffer(std::string name, std::vector<std::int64_t> shape, DType dtype, bool is_persistent);
  void rename(std::string disk, std::string module) { table_.renames.push_back({std::move(disk), std::move(module)}); }

 private:
  const ModelSpec& model_;
  ParameterTable& table_;
  std::string prefix_;
  std::int32_t layer_ = -1;
};

}  // namespace shardplan
