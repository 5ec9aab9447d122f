// Rotary position embedding: the inverse frequencies, the one constant buffer of a model.
//
// Computed in fp32, step by step as transformers 5.24 does, so that a recomputed buffer has its bits. Types: default, linear, llama3.
#pragma once

#include <vector>

#include "planner/graph/model_spec.h"

namespace shardplan {

[[nodiscard]] std::vector<float> inverse_frequencies(const ModelSpec& model);  // head_dim / 2 of them

}  // namespace shardplan
