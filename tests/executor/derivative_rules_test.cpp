// Autograd judges the derivative rules: the forward ops of a graph run through the op table with gradients required, autograd makes
// the gradients, and the graph's own backward ops must give the same bits, loss and every parameter, one thread.
//
// Both sides read the same parameters, ids and targets. Autograd sees views as the library's own calls, so that their derivatives
// are its own. The same run holds every op to the bytes that the planner's table says: results and scratch, no more and no less.
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "executor/counting_allocator.h"
#include "executor/op_table.h"
#include "executor/rank_state.h"
#include "executor/rotary_tables.h"
#include "planner/graph/ops.h"
#include "tests/executor/small_models.h"

namespace shardplan {
namespace {

struct Case {
  std::string name;
  SmallGraph graph;
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

struct Operands {
  std::vector<at::Tensor> parameters;  // by ParameterId, compute dtype
  at::Tensor frequencies, ids, targets;
  double loss_seed = 1;
};

Operands make_operands(const OpGraph& graph, const GraphRequest& request) {
  const c10::InferenceMode no_autograd(false);
  Operands operands;
  at::manual_seed(11);
  for (const Parameter& p : graph.table.parameters) {
    at::Tensor values = at::randn(p.shape).mul_(0.08);
    if (p.kind == ParameterKind::Norm) values.add_(1.0);
    operands.parameters.push_back(values.to(torch_dtype(graph.compute)));
  }
  const std::vector<float> frequencies = rotary_frequencies(request.model);
  operands.frequencies = at::empty({static_cast<std::int64_t>(frequencies.size())}, at::kFloat);
  std::copy(frequencies.begin(), frequencies.end(), operands.frequencies.data_ptr<float>());
  operands.ids = at::randint(0, request.model.vocab_size, {graph.micro_batch, graph.seq_len}, at::kLong);
  operands.targets = at::randint(0, request.model.vocab_size, {graph.micro_batch, graph.seq_len}, at::kLong);
  operands.targets.select(0, 0).narrow(0, 0, 9).fill_(-100);
  operands.targets.select(0, graph.micro_batch - 1).narrow(0, graph.seq_len - 5, 5).fill_(-100);
  operands.loss_seed = 1.0F / static_cast<float>(operands.targets.ne(-100).sum().item<std::int64_t>());
  return operands;
}

std::vector<at::Tensor> outside_values(const OpGraph& graph, const Operands& operands, const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> values(graph.values.size());
  for (std::size_t v = 0; v < graph.values.size(); ++v) {
    const Storage& storage = graph.storage(graph.values[v].storage);
    if (storage.made_by.is_set() || graph.values[v].offset != 0 || graph.values[v].sizes.rank == 0) continue;
    if (storage.role == StorageRole::Parameter && is_contiguous(graph.values[v])) values[v] = parameters[storage.parameter.at()];
    if (storage.role == StorageRole::Buffer) values[v] = operands.frequencies;
  }
  values[graph.ids.at()] = operands.ids;
  values[graph.targets.at()] = operands.targets;
  return values;
}

// The library's view calls, whose derivatives autograd knows.
at::Tensor view_for_autograd(const OpGraph& graph, const Op& op, const at::Tensor& x) {
  const Dims& sizes = graph.value(op.outputs[0]).sizes;
  const at::IntArrayRef to(sizes.d.data(), static_cast<std::size_t>(sizes.rank));
  if (op.kind == OpKind::Transpose) return x.transpose(op.ints[0], op.ints[1]);
  if (op.kind == OpKind::Slice) return x.slice(op.ints[0], op.ints[1], op.ints[1] + op.ints[2]);
  if (op.kind == OpKind::Expand) return x.expand(to);
  return x.view(to);
}

// Loss and gradients (by ParameterId; undefined where nothing trains) by autograd.
std::pair<at::Tensor, std::vector<at::Tensor>> by_autograd(const OpGraph& graph, const Operands& operands) {
  std::vector<at::Tensor> leaves;
  for (std::size_t p = 0; p < operands.parameters.size(); ++p)
    leaves.push_back(operands.parameters[p].detach().clone().requires_grad_(graph.table.parameters[p].trainable));
  std::vector<at::Tensor> values = outside_values(graph, operands, leaves);
  for (std::int64_t i = 0; i < graph.num_forward_ops; ++i) {
    const Op& op = graph.ops[static_cast<std::size_t>(i)];
    if (is_view(op.kind)) {
      values[op.outputs[0].at()] = view_for_autograd(graph, op, values[op.inputs[0].at()]);
    } else {
      run_op(graph, op, values, {});
    }
  }
  const at::Tensor loss = values[graph.loss.at()];
  loss.backward(at::full({}, operands.loss_seed, at::kFloat));
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& leaf : leaves) gradients.push_back(leaf.grad());
  return {loss.detach(), gradients};
}

// What one op allocated at its highest, against the planner's table.
void expect_bytes_of_op(const OpGraph& graph, OpId id, std::int64_t before_bytes, const MemoryReading& reading) {
  const Op& op = graph.op(id);
  std::int64_t results = 0;
  for (const ValueId out : op.outputs)
    if (out.is_set() && graph.storage_of(out).made_by == id) results += graph.storage_of(out).bytes;
  const OpCost cost = op_cost(graph, id);
  EXPECT_EQ(reading.peak_bytes - before_bytes, results + cost.scratch_bytes)
      << op_kind_name(op.kind) << " '" << graph.name_of(op) << "' layer " << op.layer
      << (op.pass == OpPass::Forward ? " forward" : " backward");
  EXPECT_EQ(reading.current_bytes - before_bytes, results) << op_kind_name(op.kind) << " keeps nothing but its results";
  if (!cost.has_packing_scratch) {
    EXPECT_EQ(reading.workspace_peak_bytes, 0);
  }
}

// Loss and gradients by the graph's own backward ops, summed in the order of the AccumulateGrad ops.
std::pair<at::Tensor, std::vector<at::Tensor>> by_graph(const OpGraph& graph, const Operands& operands) {
  const c10::InferenceMode no_autograd;
  CountingMeter memory;
  std::vector<at::Tensor> values = outside_values(graph, operands, operands.parameters);
  std::vector<at::Tensor> gradients(operands.parameters.size());
  const StepScalars scalars{.loss_seed = operands.loss_seed};
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    const OpId id(static_cast<std::int64_t>(i));
    const Op& op = graph.ops[i];
    if (op.kind == OpKind::AccumulateGrad) {
      at::Tensor& sum = gradients[op.parameter.at()];
      const at::Tensor& contribution = values[op.inputs[0].at()];
      if (sum.defined()) {
        sum.add_(contribution);
      } else {
        sum = contribution.clone(at::MemoryFormat::Contiguous);
      }
      continue;
    }
    if (is_view(op.kind)) {
      run_op(graph, op, values, scalars);
      require_layout(graph, op, values);
      continue;
    }
    std::vector<ExpectedResult> results;
    for (const ValueId out : op.outputs)
      if (graph.storage_of(out).made_by == id) results.push_back({graph.storage_of(out).bytes, MemoryCategory::Activation});
    const OpCost cost = op_cost(graph, id);
    memory.restart_peak();
    const std::int64_t before_bytes = memory.read().current_bytes;
    {
      const AllocationScope scope(results, {cost.has_packing_scratch, cost.scratch_bytes});
      run_op(graph, op, values, scalars);
    }
    expect_bytes_of_op(graph, id, before_bytes, memory.read());
    require_layout(graph, op, values);
  }
  return {values[graph.loss.at()], gradients};
}

class DerivativeRules : public testing::TestWithParam<Case> {
 protected:
  static void SetUpTestSuite() {
    install_counting_allocator();
    at::set_num_threads(1);
  }
};

TEST_P(DerivativeRules, LossAndEveryGradientHaveAutogradsBits) {
  const GraphRequest request = request_of(GetParam().graph);
  const OpGraph graph = build_graph(request);
  const Operands operands = make_operands(graph, request);
  const auto [expected_loss, expected] = by_autograd(graph, operands);
  const auto [loss, gradients] = by_graph(graph, operands);
  EXPECT_EQ(loss.item<float>(), expected_loss.item<float>());
  EXPECT_GT(loss.item<float>(), 0.0F);
  for (std::size_t p = 0; p < gradients.size(); ++p) {
    const Parameter& parameter = graph.table.parameters[p];
    ASSERT_EQ(gradients[p].defined(), parameter.trainable) << parameter.name;
    if (!parameter.trainable) continue;
    EXPECT_TRUE(at::equal(gradients[p], expected[p]))
        << parameter.name << ": largest difference "
        << gradients[p].to(at::kFloat).sub(expected[p].to(at::kFloat)).abs().max().item<float>();
    EXPECT_GT(gradients[p].abs().max().item<float>(), 0.0F) << parameter.name;
  }
}

TEST(DerivativeRulesJudge, NoticesASingleWrongFactor) {
  install_counting_allocator();
  at::set_num_threads(1);
  const GraphRequest request = request_of({.model = {.type = "llama"}});
  OpGraph graph = build_graph(request);
  const Operands operands = make_operands(graph, request);
  const std::vector<at::Tensor> expected = by_autograd(graph, operands).second;
  // The derivative of the first norm that backward meets: -1/2 becomes a quarter.
  const auto wrong = std::find_if(graph.ops.begin() + graph.num_forward_ops, graph.ops.end(),
                                  [](const Op& op) { return op.kind == OpKind::MulScalar && op.scalar == -0.5; });
  ASSERT_NE(wrong, graph.ops.end());
  wrong->scalar = -0.25;
  const std::vector<at::Tensor> gradients = by_graph(graph, operands).second;
  int unequal = 0;
  for (std::size_t p = 0; p < gradients.size(); ++p) unequal += at::equal(gradients[p], expected[p]) ? 0 : 1;
  EXPECT_GT(unequal, 0);
}

std::vector<Case> all_cases() {
  const std::vector<std::pair<std::string, SmallModel>> models = {
      {"llama", {.type = "llama"}},     {"llama_equal_heads", {.type = "llama", .kv_heads = 4}},
      {"qwen2", {.type = "qwen2"}},     {"qwen3", {.type = "qwen3", .head_dim = 20}},
      {"mistral", {.type = "mistral"}}, {"mistral_window", {.type = "mistral", .window = 16}},
  };
  std::vector<Case> cases;
  for (const auto& [name, model] : models) {
    for (const DType dtype : {DType::F32, DType::BF16}) {
      for (const bool tied : {false, true}) {
        SmallModel m = model;
        m.tied = tied;
        cases.push_back({name + "_" + std::string(dtype_name(dtype)) + (tied ? "_tied" : ""), {.model = m, .compute = dtype}});
      }
    }
  }
  const std::vector<std::pair<std::string, std::vector<std::string>>> selections = {
      {"head", {"head"}}, {"norms", {"norms"}}, {"last1", {"last:1"}}, {"embed", {"embed"}}, {"biases", {"biases"}}};
  for (const auto& [name, words] : selections) {
    for (const DType dtype : {DType::F32, DType::BF16}) {
      const std::string type = name == "biases" ? "qwen2" : "llama";
      cases.push_back({type + "_train_" + name + "_" + std::string(dtype_name(dtype)),
                       {.model = {.type = type}, .train = words, .compute = dtype}});
    }
  }
  cases.push_back({"llama_short", {.model = {.type = "llama"}, .batch = 3, .seq_len = 15}});
  cases.push_back({"llama_blocks_of_attention", {.model = {.type = "llama", .layers = 1}, .batch = 1, .seq_len = 201}});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Families, DerivativeRules, testing::ValuesIn(all_cases()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace shardplan
