// Every parameter of a model under its checkpoint name, in model order, with ties.
//
// A tied head is the embedding's parameter used twice: it appears once. Buffers (inverse frequencies) are listed apart: they are
// in no checkpoint and are recomputed from the config.
// Units: elements. Source: transformers 5.24 module trees; tests/planner/data/parameters.json.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/ids.h"
#include "planner/graph/model_spec.h"

namespace shardplan {

enum class ParameterKind : std::uint8_t { Matrix, Norm, Bias, Embedding };
enum class ParameterPart : std::uint8_t { Embedding, Attention, Mlp, LayerNorm, FinalNorm, Head };

struct Parameter {
  std::string name;                 // "model.layers.3.self_attn.q_proj.weight"
  std::vector<std::int64_t> shape;  // as stored: Linear [out, in]
  ParameterKind kind = ParameterKind::Matrix;
  ParameterPart part = ParameterPart::Attention;
  std::int32_t layer = -1;          // -1 outside layers
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
  bool operator==(const BufferTensor&) const = default;
};

struct ParameterTable {
  std::vector<Parameter> parameters;  // by ParameterId
  std::vector<BufferTensor> buffers;
  bool head_is_tied = false;

  [[nodiscard]] std::int64_t total_numel() const;
  [[nodiscard]] std::int64_t trainable_numel() const;
};

[[nodiscard]] ParameterTable parameter_table(const ModelSpec& model);

// Marks what trains. `train`: words of --train ("all", "head", "embed", "last:N", "norms", "biases", "regex:RE"), united;
// `freeze`: regular expressions taken away again. UsageError for an unknown word, a bad expression, or nothing left to train.
void select_trainable(ParameterTable& table, const ModelSpec& model, const std::vector<std::string>& train,
                      const std::vector<std::string>& freeze);

}  // namespace shardplan
