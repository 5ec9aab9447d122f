#include "planner/graph/op_graph.h"

#include "core/error.h"
#include "planner/graph/families/llama.h"
#include "planner/graph/passes/differentiate.h"
#include "planner/graph/passes/prune.h"
#include "planner/graph/segments.h"
#include "planner/graph/strides.h"

namespace shardplan {

Dims::Dims(std::initializer_list<std::int64_t> list) {
  CHECK(list.size() <= d.size(), "a value has at most six dimensions");
  for (const std::int64_t size : list) d[static_cast<std::size_t>(rank++)] = size;
}

std::int64_t Dims::numel() const {
  std::int64_t n = 1;
  for (std::int32_t i = 0; i < rank; ++i) n *= (*this)[i];
  return n;
}

bool is_contiguous(const Value& value) {
  std::int64_t next = 1;
  for (std::int32_t i = value.sizes.rank - 1; i >= 0; --i) {
    if (value.sizes[i] == 1) continue;
    if (value.strides[i] != next) return false;
    next *= value.sizes[i];
  }
  return true;
}

OpGraph build_forward(const GraphRequest& request) {
  CHECK(request.micro_batch > 0 && request.seq_len > 0, "a graph is for at least one token");
  OpGraph graph;
  graph.table = request.table;
  graph.kernels = request.kernels;
  graph.micro_batch = request.micro_batch;
  graph.seq_len = request.seq_len;
  graph.compute = request.compute;
  // Forward and backward together; measured per layer, with room to spare.
  const std::size_t expected_ops = 100 + 220 * static_cast<std::size_t>(request.model.num_layers);
  graph.ops.reserve(expected_ops);
  graph.values.reserve(expected_ops);
  graph.storages.reserve(expected_ops);
  GraphBuilder build(graph);
  CHECK(!request.model.graph_gap, "a graph is built for what the builders describe");
  build_llama(build, request.model);
  graph.num_forward_ops = static_cast<std::int64_t>(graph.ops.size());
  return graph;
}

OpGraph build_graph(const GraphRequest& request) {
  OpGraph graph = build_forward(request);
  differentiate(graph, graph.loss);
  prune(graph);
  (void)find_segments(graph);
  return graph;
}

}  // namespace shardplan
