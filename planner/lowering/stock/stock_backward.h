// The backward pass as PyTorch's engine runs it: nodes, what each saved, and when gradients die.
//
// A node is all backward ops of one forward op. While it runs, the gradient it was given, what it saved and all that it makes are
// alive; sums over broadcast dimensions come last, each dropping its operand. When the node has returned, its gradient and what it
// saved go; then results are added to what their receivers already have (an Add is a step of its own), and a parameter's gradient
// is handed over. The seed of the loss is held by the caller until the pass has ended. Source: PyTorch 2.11,
// torch/csrc/autograd/engine.cpp and input_buffer.cpp, with tensors that are not added to in place.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/graph/op_graph.h"
#include "planner/lowering/stock/stock_forward.h"

namespace shardplan {

struct BackwardStep {
  OpId forward;                         // whose derivative; of an Add: of the node that made the second addend
  std::int32_t position = -1;           // of `forward` in StockForward::order
  std::vector<OpId> ops;                // in order of running; views included
  std::vector<StorageId> saved;         // forward storages and parameters that the node reads, each once
  std::vector<StorageId> dies;          // gradients that die when the step has ended
  std::vector<ParameterId> hands_over;  // parameters whose gradient (result `gradients`) is complete or to be added here
  std::vector<StorageId> gradients;     // storages of those
};

struct StockBackward {
  StorageId seed;  // of the loss, made before the first step
  std::vector<BackwardStep> steps;
  [[nodiscard]] bool empty() const { return steps.empty(); }
};

[[nodiscard]] StockBackward stock_backward(const OpGraph& graph, const StockForward& forward);

}  // namespace shardplan
