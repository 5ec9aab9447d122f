#include "planner/graph/ops.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include "tests/planner/graph/small_graphs.h"

namespace shardplan {
namespace {

using testing_graph::arbitrary_request;
using testing_graph::small_model;
using testing_graph::small_request;

std::int64_t flops_where(const OpGraph& graph, OpPass pass, ComputeClass compute) {
  std::int64_t sum = 0;
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    const OpCost cost = op_cost(graph, OpId(static_cast<std::int64_t>(i)));
    if (graph.ops[i].pass == pass && cost.work.compute == compute) sum += cost.work.flops;
  }
  return sum;
}

// Every matrix but the token table multiplies each of T = B * S tokens once forward and twice backward: 2 P T and 4 P T.
TEST(OpCost, MatrixProductsDoTwoFlopsAWeightAndTokenForwardAndFourBackward) {
  const ModelSpec model = small_model("llama");
  const GraphRequest request = small_request(model);
  const OpGraph graph = build_graph(request);
  std::int64_t weights = 0;
  for (const Parameter& p : request.table.parameters) weights += p.kind == ParameterKind::Matrix ? p.numel() : 0;
  const std::int64_t tokens = request.micro_batch * request.seq_len;
  EXPECT_EQ(flops_where(graph, OpPass::Forward, ComputeClass::Matmul), 2 * weights * tokens);
  EXPECT_EQ(flops_where(graph, OpPass::Backward, ComputeClass::Matmul), 4 * weights * tokens);
}

// Two products of S x S x D a head forward, five backward; a causal kernel does half.
TEST(OpCost, CausalAttentionDoesHalfOfItsProducts) {
  const ModelSpec model = small_model("llama");
  const GraphRequest request = small_request(model);
  const OpGraph graph = build_graph(request);
  const std::int64_t product = 2 * request.micro_batch * model.num_heads * request.seq_len * request.seq_len * model.head_dim;
  EXPECT_EQ(flops_where(graph, OpPass::Forward, ComputeClass::Attention), model.num_layers * 2 * product / 2);
  EXPECT_EQ(flops_where(graph, OpPass::Backward, ComputeClass::Attention), model.num_layers * 5 * product / 2);
}

// Blocks of 32 queries below 192 tokens, of at most 512 keys: scores, two row values and the output block, fp32, per thread.
TEST(OpCost, CpuAttentionScratchGrowsWithThreads) {
  const ModelSpec model = small_model("llama");
  GraphRequest request = small_request(model);
  request.seq_len = 100;
  for (const std::int32_t threads : {1, 3}) {
    request.kernels.threads = threads;
    const OpGraph graph = build_graph(request);
    for (std::size_t i = 0; i < graph.ops.size(); ++i) {
      const std::int64_t scratch = op_cost(graph, OpId(static_cast<std::int64_t>(i))).scratch_bytes;
      if (graph.ops[i].kind == OpKind::AttentionCpu) {
        EXPECT_EQ(scratch, threads * 4 * (32 * 100 + 2 * 32 + 32 * model.head_dim));
      }
      if (graph.ops[i].kind == OpKind::AttentionCpuBackward) {
        EXPECT_EQ(scratch, threads * (8 * 32 * 100 + 4 * 32));
      }
    }
  }
}

RC_GTEST_PROP(OpCost, ViewsCostNothingAndWrittenBytesAreTheResults, ()) {
  const OpGraph graph = build_graph(*arbitrary_request());
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    const Op& op = graph.ops[i];
    const OpCost cost = op_cost(graph, OpId(static_cast<std::int64_t>(i)));
    if (is_view(op.kind)) {
      RC_ASSERT(cost.work == KernelWork{});
      RC_ASSERT(cost.scratch_bytes == 0);
      continue;
    }
    std::int64_t results = 0;
    for (const ValueId output : op.outputs) results += graph.value(output).sizes.numel() * element_bytes(graph.value(output).dtype);
    RC_ASSERT(cost.work.written_bytes == results);
    RC_ASSERT(cost.work.read_bytes >= 0);
  }
}

}  // namespace
}  // namespace shardplan
