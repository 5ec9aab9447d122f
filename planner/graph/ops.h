// What one op costs: the one table (op kind, kernel, dtypes) -> flops, bytes read and written, scratch inside the kernel.
//
// Result bytes are those of the op's result storages, in the graph. Scratch is what the library allocates inside the call beyond
// its results, at the moment when it holds most, with all results alive. Each row of the table in ops.cpp names its source.
#pragma once

#include <cstdint>

#include "core/step_program.h"
#include "planner/graph/op_graph.h"

namespace shardplan {

struct OpCost {
  KernelWork work;
  std::int64_t scratch_bytes = 0;    // modelled: part of every equality
  bool has_packing_scratch = false;  // 16-bit CPU products: processor-dependent packing, a Workspace line measured, not modelled
};

[[nodiscard]] OpCost op_cost(const OpGraph& graph, OpId op);

}  // namespace shardplan
