// Inverse frequencies of rotary positions: in no checkpoint, recomputed from the config, in fp32.
//
// Same operations in the same order as transformers 5.24 (modeling_rope_utils.py), so that the bits are the same. Computed on the
// host whatever the device. Cosine and sine tables are ops of the graph.
#pragma once

#include <vector>

#include "planner/graph/model_spec.h"

namespace shardplan {

[[nodiscard]] std::vector<float> rotary_frequencies(const ModelSpec& model);  // head_dim / 2 values

}  // namespace shardplan
