// Laws that hold for every graph, on random small models of all families, kernels, dtypes and trainable selections.
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "planner/graph/passes/differentiate.h"
#include "planner/graph/passes/prune.h"
#include "planner/graph/saved_values.h"
#include "planner/graph/segments.h"
#include "planner/graph/strides.h"
#include "tests/planner/graph/small_graphs.h"

namespace shardplan {
namespace {

using testing_graph::arbitrary_request;
using testing_graph::small_model;
using testing_graph::small_request;
using testing_graph::text_from;

GraphRequest drawn_request() {
  const GraphRequest request = *arbitrary_request();
  RC_LOG() << text_from(request) << "\n";
  return request;
}

std::int64_t last_place(const Value& value) {
  std::int64_t place = value.offset;
  for (std::int32_t i = 0; i < value.sizes.rank; ++i) place += (value.sizes[i] - 1) * value.strides[i];
  return place;
}

RC_GTEST_PROP(GraphLaws, EveryOpReadsWhatIsThereAndEveryValueLiesInItsStorage, ()) {
  const OpGraph graph = build_graph(drawn_request());
  std::vector<bool> is_there(graph.values.size(), false);
  for (std::size_t v = 0; v < graph.values.size(); ++v) {
    const Value& value = graph.values[v];
    const Storage& storage = graph.storage(value.storage);
    is_there[v] = !storage.made_by.is_set();
    RC_ASSERT((last_place(value) + 1) * element_bytes(value.dtype) <= storage.bytes);
    RC_ASSERT(value.offset >= 0);
  }
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    const Op& op = graph.ops[i];
    RC_ASSERT((op.pass == OpPass::Forward) == (static_cast<std::int64_t>(i) < graph.num_forward_ops));
    for (const ValueId input : op.inputs) RC_ASSERT(is_there[input.at()]);
    for (const ValueId output : op.outputs) {
      is_there[output.at()] = true;
      const StorageId storage = graph.value(output).storage;
      const bool makes_it = graph.storage(storage).made_by == OpId(static_cast<std::int64_t>(i));
      const bool shares_it = is_view(op.kind) || (op.kind == OpKind::MaskedFill && op.ints[0] == 1);
      RC_ASSERT(makes_it != shares_it);
      if (shares_it) RC_ASSERT(storage == graph.value(op.inputs[0]).storage);
    }
  }
}

// Backward ops stand in the reverse order of the forward ops they belong to.
RC_GTEST_PROP(GraphLaws, BackwardRunsInReverse, ()) {
  const OpGraph graph = build_graph(drawn_request());
  OpId last(graph.num_forward_ops);
  for (std::size_t i = static_cast<std::size_t>(graph.num_forward_ops); i < graph.ops.size(); ++i) {
    RC_ASSERT(graph.ops[i].forward.is_set());
    RC_ASSERT(graph.ops[i].forward <= last);
    last = graph.ops[i].forward;
  }
}

// As many contributions as the forward pass reads of a parameter that trains, none for one that does not.
RC_GTEST_PROP(GraphLaws, EveryTrainableParameterGetsOneContributionPerUse, ()) {
  const OpGraph graph = build_graph(drawn_request());
  std::map<std::int32_t, int> uses, contributions;
  for (const Op& op : graph.ops) {
    if (op.kind == OpKind::AccumulateGrad) {
      ++contributions[op.parameter.value];
      const Parameter& parameter = graph.table.parameters[op.parameter.at()];
      const Dims& sizes = graph.value(op.inputs[0]).sizes;
      RC_ASSERT(std::equal(parameter.shape.begin(), parameter.shape.end(), sizes.span().begin(), sizes.span().end()));
    }
    if (op.pass == OpPass::Backward) continue;
    for (const ValueId input : op.inputs) {
      const Storage& storage = graph.storage_of(input);
      if (storage.role == StorageRole::Parameter && graph.table.parameters[storage.parameter.at()].trainable)
        ++uses[storage.parameter.value];
    }
  }
  RC_ASSERT(uses == contributions);
}

// What pruning takes away was read by nothing that stays; what stays is unchanged and in order.
RC_GTEST_PROP(GraphLaws, PruneKeepsWhatLeadsToLossAndGradients, ()) {
  const GraphRequest request = drawn_request();
  OpGraph whole = build_forward(request);
  differentiate(whole, whole.loss);
  OpGraph pruned = whole;
  prune(pruned);
  std::size_t at = 0;
  std::vector<bool> is_read(pruned.values.size(), false);
  for (const Op& op : pruned.ops) {
    while (at < whole.ops.size() &&
           !(whole.ops[at].kind == op.kind && whole.ops[at].name == op.name && whole.ops[at].layer == op.layer))
      ++at;
    RC_ASSERT(at < whole.ops.size());
    ++at;
    for (const ValueId input : op.inputs) is_read[input.at()] = true;
  }
  is_read[pruned.loss.at()] = true;
  for (const Op& op : pruned.ops) {
    const bool any = std::any_of(op.outputs.begin(), op.outputs.end(), [&](ValueId v) { return is_read[v.at()]; });
    RC_ASSERT(any || op.kind == OpKind::AccumulateGrad);
  }
  const auto accumulations = [](const OpGraph& graph) {
    return std::count_if(graph.ops.begin(), graph.ops.end(), [](const Op& op) { return op.kind == OpKind::AccumulateGrad; });
  };
  RC_ASSERT(accumulations(whole) == accumulations(pruned));
  OpGraph twice = pruned;
  prune(twice);
  RC_ASSERT(twice.ops.size() == pruned.ops.size());
}

// An activation: made by an op that reads a parameter or an activation.
std::vector<bool> activations_of(const OpGraph& graph) {
  std::vector<bool> result(graph.values.size(), false);
  for (std::int64_t i = 0; i < graph.num_forward_ops; ++i) {
    const Op& op = graph.ops[static_cast<std::size_t>(i)];
    const bool carries = std::any_of(op.inputs.begin(), op.inputs.end(), [&](ValueId v) {
      return result[v.at()] || graph.storage_of(v).role == StorageRole::Parameter;
    });
    for (const ValueId output : op.outputs) result[output.at()] = carries;
  }
  return result;
}

RC_GTEST_PROP(Segments, OneActivationCrossesEveryBoundaryForward, ()) {
  const GraphRequest request = drawn_request();
  const OpGraph graph = build_graph(request);
  const std::vector<bool> is_activation = activations_of(graph);
  const Segments segments = segments_of(graph);
  std::int32_t next = 0;
  for (const Segment& segment : segments.all) {
    RC_ASSERT(segment.first_forward == next);
    RC_ASSERT(segment.end_forward > segment.first_forward);
    next = segment.end_forward;
    std::set<std::int32_t> crossing;
    for (std::int32_t i = segment.end_forward; i < graph.num_forward_ops; ++i) {
      for (const ValueId input : graph.ops[static_cast<std::size_t>(i)].inputs) {
        const OpId made_by = graph.storage_of(input).made_by;
        if (is_activation[input.at()] && made_by.value < segment.end_forward) crossing.insert(graph.value(input).storage.value);
      }
    }
    RC_ASSERT(crossing.size() == (segment.end_forward == graph.num_forward_ops ? 0U : 1U));
  }
  RC_ASSERT(next == graph.num_forward_ops);
}

RC_GTEST_PROP(Segments, AreEmbeddingTwoHalvesALayerNormAndHead, ()) {
  const GraphRequest request = drawn_request();
  std::vector<std::string> expected = {"embed"};
  for (std::int64_t layer = 0; layer < request.model.num_layers; ++layer) {
    expected.push_back("layers." + std::to_string(layer) + ".attention");
    expected.push_back("layers." + std::to_string(layer) + ".mlp");
  }
  expected.push_back("norm");
  expected.push_back("head");
  const Segments segments = segments_of(build_graph(request));
  std::vector<std::string> names;
  for (const Segment& segment : segments.all) names.push_back(segment.name);
  RC_ASSERT(names == expected);
}

RC_GTEST_PROP(Segments, ReadEveryParameterInTheirPlace, ()) {
  const GraphRequest request = drawn_request();
  const OpGraph graph = build_graph(request);
  std::map<std::int32_t, int> places;
  for (const Segment& segment : segments_of(graph).all) {
    for (const ParameterId p : segment.parameters) {
      ++places[p.value];
      RC_ASSERT(graph.table.parameters[p.at()].layer == segment.layer);
    }
  }
  for (std::size_t p = 0; p < graph.table.parameters.size(); ++p) {
    const bool is_used_twice = graph.table.head_is_tied && graph.table.parameters[p].part == ParameterPart::Embedding;
    RC_ASSERT(places[static_cast<std::int32_t>(p)] == (is_used_twice ? 2 : 1));
  }
}

// Below the lowest trainable parameter nothing runs backward and nothing is saved.
TEST(Differentiate, NothingIsDoneBelowTheLowestTrainableParameter) {
  const ModelSpec model = small_model("llama", {{"num_hidden_layers", 3}});
  GraphRequest request = small_request(model);
  select_trainable(request.table, model, {"last:1"}, {});
  const OpGraph graph = build_graph(request);
  for (const Segment& segment : segments_of(graph).all) {
    const bool is_below = segment.name == "embed" || segment.layer == 0 || segment.layer == 1;
    EXPECT_EQ(segment.end_backward == segment.first_backward, is_below) << segment.name;
  }
  for (const SavedStorage& saved : saved_storages(graph)) {
    const Storage& storage = graph.storage(saved.storage);
    if (!storage.made_by.is_set()) continue;
    const Op& made_by = graph.op(storage.made_by);
    // What enters the first layer that trains is saved as it comes, and so are the tables.
    const bool enters = made_by.layer == 1 && graph.name_of(made_by) == "mlp.residual";
    EXPECT_TRUE(enters || made_by.layer == 2 || made_by.layer == -1) << graph.name_of(made_by) << " of layer " << made_by.layer;
  }
}

TEST(Differentiate, HeadAloneRunsNoBackwardBeyondItsWeight) {
  const ModelSpec model = small_model("llama");
  GraphRequest request = small_request(model);
  select_trainable(request.table, model, {"head"}, {});
  const OpGraph graph = build_graph(request);
  std::vector<OpKind> kernels;
  for (const Op& op : graph.ops) {
    if (op.pass == OpPass::Backward && !is_view(op.kind)) kernels.push_back(op.kind);
  }
  EXPECT_EQ(kernels, (std::vector<OpKind>{OpKind::LossSeed, OpKind::NllLossBackward, OpKind::LogSoftmaxBackward, OpKind::Mm,
                                          OpKind::AccumulateGrad}));
}

// A graph depends on the request alone.
RC_GTEST_PROP(GraphLaws, SameRequestGivesTheSameGraph, ()) {
  const GraphRequest request = drawn_request();
  const OpGraph a = build_graph(request), b = build_graph(request);
  RC_ASSERT(a.ops.size() == b.ops.size());
  RC_ASSERT(a.names == b.names);
  for (std::size_t i = 0; i < a.ops.size(); ++i) {
    RC_ASSERT(a.ops[i].kind == b.ops[i].kind);
    RC_ASSERT(std::equal(a.ops[i].inputs.begin(), a.ops[i].inputs.end(), b.ops[i].inputs.begin(), b.ops[i].inputs.end()));
  }
}

}  // namespace
}  // namespace shardplan
