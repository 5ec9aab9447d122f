// Every parameter of a model under its checkpoint name, in model order, with ties.
//
// A tied head is the embedding's parameter used twice: it appears once. Buffers are listed apart, under their names in the module:
// most are in no checkpoint and are recomputed from the config.
// Units: elements. Source: transformers 5.24 module trees; tests/planner/data/parameters.json.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/ids.h"
#include "planner/graph/model_spec.h"

namespace shardplan {

enum class ParameterKind : std::uint8_t { Matrix, Norm, Bias, Embedding };
enum class ParameterPart : std::uint8_t { Embedding, Position, Projection, Attention, Mlp, LayerNorm, FinalNorm, Head };

struct Parameter {
  std::string name;                 // "model.layers.3.self_attn.q_proj.weight"
  std::vector<std::int64_t> shape;  // as stored: Linear [out, in]
  ParameterKind kind = ParameterKind::Matrix;
  ParameterPart part = ParameterPart::Attention;
  std::int32_t layer = -1;   // -1 outside layers
  std::int32_t expert = -1;  // routed expert that it belongs to
  bool trainable = true;

  [[nodiscard]] std::int64_t numel() const {
    std::int64_t n = 1;
    for (const std::int64_t d : shape) n *= d;
    return n;
  }
  bool operator==(const Parameter&) const = default;
};

struct BufferTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  DType dtype = DType::F32;
  bool is_persistent = false;  // stands in a checkpoint
  bool operator==(const BufferTensor&) const = default;
};

// Names of the file that begin with `disk` begin with `module` in memory.
struct ModuleRename {
  std::string disk, module;
};

struct ParameterTable {
  std::vector<Parameter> parameters;  // by ParameterId
  std::vector<BufferTensor> buffers;
  bool head_is_tied = false;
  std::string head_name, embedding_name;  // of the weights, in the module
  std::vector<ModuleRename> renames;      // at most one
  // Experts of a layer are one tensor in memory: these stand for the `num_fused` parameters of the file.
  std::vector<Parameter> module_tensors;
  std::int64_t num_fused = 0;

  [[nodiscard]] std::int64_t total_numel() const;
  [[nodiscard]] std::int64_t trainable_numel() const;
};

[[nodiscard]] ParameterTable parameter_table(const ModelSpec& model);

// Marks what trains. `train`: words of --train ("all", "head", "embed", "last:N", "norms", "biases", "regex:RE"), united;
// `freeze`: regular expressions taken away again. UsageError for an unknown word, a bad expression, or nothing left to train.
void select_trainable(ParameterTable& table, const ModelSpec& model, const std::vector<std::string>& train,
                      const std::vector<std::string>& freeze);

}  // namespace shardplan
