// Scaled dot product attention on [B, A, S, D], by kernel: a fused call, or the single calls of the composed forms.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/graph/graph_builder.h"

namespace shardplan {

// What one layer's attention adds to its scores; unset when the kernel's causal flag does.
struct LayerMask {
  ValueId additive;             // [1, 1, S, S] (stock code: [B, 1, S, S])
  bool is_kernels_own = false;  // the model code passes none: the composed kernel makes it to be causal
};

// Masks of a model: made once, before the first layer, and handed to every layer that uses them.
class AttentionMasks {
 public:
  // `windows`: per layer, tokens seen back; 0 = all.
  AttentionMasks(GraphBuilder& build, const std::vector<std::int64_t>& windows);

  // Stock code makes the additive mask anew in each layer; then this appends ops.
  [[nodiscard]] LayerMask of_layer(std::size_t layer);

 private:
  struct OfWindow {
    std::int64_t window = 0;
    ValueId allowed;   // bool [B or 1, 1, S, S]
    ValueId additive;  // when shared by all layers
  };
  ValueId allowed(std::int64_t window);
  ValueId additive_from(ValueId allowed);

  GraphBuilder& build_;
  std::vector<std::int64_t> windows_;
  std::vector<OfWindow> made_;
};

// q [B, A, S, D], k and v [B, K, S, D] -> [B, S, A*D], contiguous.
[[nodiscard]] ValueId attend(GraphBuilder& build, ValueId q, ValueId k, ValueId v, const LayerMask& mask);

}  // namespace shardplan
