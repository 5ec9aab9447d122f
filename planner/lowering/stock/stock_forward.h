// The forward pass as a Python modelling code runs it: its order, its modules, and how long its frames hold a tensor that autograd
// does not save.
//
// A tensor is held by the frame that made it, by the frames it was handed to, and by expressions; so it dies later than its last
// reader.
//   - what enters a module (an argument) lives until the module returns; what enters a decoder layer, until the caller assigns the
//   result;
//   - what layers are handed from before the first one (token vectors, tables, masks) lives until the model's body returns, the
//     body's result and what head and loss hand on until the whole forward does;
//   - queries, keys and values are locals of the attention module, composed attention's weights of the layer; the variance and the
//   normalised fp32 vectors are locals of a norm.
// Everything else is part of an expression and dies with its last reader.
// Leaves out: objects that are not tensors. Positions count places in `order`.
// Source: transformers 5.24 modelling code; equal to PyTorch's tracker event by event in the cases of docs/schedule_fsdp2.md.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/graph/op_graph.h"

namespace shardplan {

struct PositionRange {
  std::int32_t first = 0, end = 0;  // half-open
  [[nodiscard]] bool contains(std::int32_t position) const { return first <= position && position < end; }
  [[nodiscard]] bool empty() const { return first >= end; }
  bool operator==(const PositionRange&) const = default;
};

// How long a storage that backward does not need is held.
struct Hold {
  std::int32_t until = -1;    // position after which it is free; -1: not made by a forward op
  bool after_module = false;  // held by the caller of the layer that ends there: dies after the layer's hooks
};

struct StockForward {
  std::vector<OpId> order;
  std::vector<std::int32_t> position;    // by OpId, of forward ops
  std::vector<Hold> holds;               // by StorageId
  PositionRange embedding;               // the token lookup
  std::vector<PositionRange> layers;     // by decoder layer
  PositionRange final_norm, head, loss;  // may be empty: final norm
};

[[nodiscard]] StockForward stock_forward(const OpGraph& graph);

}  // namespace shardplan
