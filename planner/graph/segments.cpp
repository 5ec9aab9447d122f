#include "planner/graph/segments.h"

#include <algorithm>
#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/biconnected_components.hpp>
#include <iterator>

#include "core/error.h"

namespace shardplan {
namespace {

// By forward op: does its result follow from a parameter? What does not is a side input.
std::vector<bool> activation_ops(const OpGraph& graph) {
  std::vector<bool> is_activation(static_cast<std::size_t>(graph.num_forward_ops), false);
  std::vector<bool> carries(graph.values.size(), false);
  for (std::size_t i = 0; i < is_activation.size(); ++i) {
    for (const ValueId input : graph.ops[i].inputs) {
      if (!input.is_set()) continue;
      is_activation[i] = is_activation[i] || carries[input.at()] || graph.storage_of(input).role == StorageRole::Parameter;
    }
    if (!is_activation[i]) continue;
    for (const ValueId output : graph.ops[i].outputs) carries[output.at()] = true;
  }
  return is_activation;
}

// Forward ops through whose results every path from the first activation to the loss leads, in order; the last op is one of them.
std::vector<std::int32_t> articulation_ops(const OpGraph& graph, const std::vector<bool>& is_activation) {
  using Graph = boost::adjacency_list<boost::vecS, boost::vecS, boost::undirectedS>;
  Graph edges(is_activation.size());
  std::vector<std::int32_t> made_by(graph.values.size(), -1);
  std::int32_t first = -1, last = -1;
  for (std::size_t i = 0; i < is_activation.size(); ++i) {
    if (!is_activation[i]) continue;
    const auto op = static_cast<std::int32_t>(i);
    if (first < 0) first = op;
    last = op;
    for (const ValueId input : graph.ops[i].inputs) {
      if (input.is_set() && made_by[input.at()] >= 0) boost::add_edge(static_cast<std::size_t>(made_by[input.at()]), i, edges);
    }
    for (const ValueId output : graph.ops[i].outputs) made_by[output.at()] = op;
  }
  CHECK(first >= 0, "a model has parameters");
  std::vector<std::size_t> found;
  boost::articulation_points(edges, std::back_inserter(found));
  std::vector<std::int32_t> cuts;
  for (const std::size_t op : found) cuts.push_back(static_cast<std::int32_t>(op));
  cuts.push_back(first);  // no edge leads into it, so it is no articulation point, but all paths start there
  cuts.push_back(last);
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  return cuts;
}

struct Piece {
  std::int32_t first = 0, end = 0;
  std::int32_t num_kernels = 0;  // that make activations
};

std::vector<Piece> pieces_between(const OpGraph& graph, const std::vector<bool>& is_activation,
                                  const std::vector<std::int32_t>& cuts) {
  std::vector<Piece> pieces;
  std::int32_t first = 0;
  for (const std::int32_t cut : cuts) {
    Piece piece{first, cut + 1, 0};
    for (auto i = static_cast<std::size_t>(first); i < static_cast<std::size_t>(piece.end); ++i) {
      piece.num_kernels += is_activation[i] && !is_view(graph.ops[i].kind) ? 1 : 0;
    }
    pieces.push_back(piece);
    first = cut + 1;
  }
  return pieces;
}

std::vector<Piece> merged(const std::vector<Piece>& pieces) {
  std::vector<Piece> result;
  bool is_run_open = false;  // the last of `result` is a run of one-op pieces that the next larger piece takes in
  for (const Piece& piece : pieces) {
    if (is_run_open) {
      result.back().end = piece.end;
      result.back().num_kernels += piece.num_kernels;
    } else {
      result.push_back(piece);
    }
    // The first piece stands alone: with the lookup it holds what makes the side inputs of all that follow.
    is_run_open = piece.num_kernels <= 1 && result.size() > 1;
  }
  return result;
}

std::string name_of_segment(const OpGraph& graph, const Segment& segment, bool is_first, bool is_last) {
  if (segment.layer < 0) return is_first ? "embed" : is_last ? "head" : "norm";
  bool has_attention = false, has_mlp = false;
  for (std::int32_t i = segment.first_forward; i < segment.end_forward; ++i) {
    const std::string_view name = graph.name_of(graph.ops[static_cast<std::size_t>(i)]);
    has_attention = has_attention || name.starts_with("self_attn");
    has_mlp = has_mlp || name.starts_with("mlp");
  }
  const std::string layer = "layers." + std::to_string(segment.layer);
  return has_attention && has_mlp ? layer : layer + (has_attention ? ".attention" : ".mlp");
}

void read_parameters(const OpGraph& graph, Segment& segment) {
  for (std::int32_t i = segment.first_forward; i < segment.end_forward; ++i) {
    for (const ValueId input : graph.ops[static_cast<std::size_t>(i)].inputs) {
      if (input.is_set() && graph.storage_of(input).role == StorageRole::Parameter)
        segment.parameters.push_back(graph.storage_of(input).parameter);
    }
  }
  std::sort(segment.parameters.begin(), segment.parameters.end());
  segment.parameters.erase(std::unique(segment.parameters.begin(), segment.parameters.end()), segment.parameters.end());
}

}  // namespace

Segments find_segments(OpGraph& graph) {
  const std::vector<bool> is_activation = activation_ops(graph);
  const std::vector<Piece> pieces = merged(pieces_between(graph, is_activation, articulation_ops(graph, is_activation)));
  CHECK(pieces.back().end == graph.num_forward_ops, "the loss is the last forward op");
  for (std::size_t s = 0; s < pieces.size(); ++s) {
    for (std::int32_t i = pieces[s].first; i < pieces[s].end; ++i)
      graph.ops[static_cast<std::size_t>(i)].segment = SegmentId(static_cast<std::int64_t>(s));
  }
  for (std::size_t i = static_cast<std::size_t>(graph.num_forward_ops); i < graph.ops.size(); ++i) {
    graph.ops[i].segment = graph.op(graph.ops[i].forward).segment;
  }
  return segments_of(graph);
}

Segments segments_of(const OpGraph& graph) {
  Segments segments;
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    const Op& op = graph.ops[i];
    CHECK(op.segment.is_set(), "find_segments ran on this graph");
    const auto at = static_cast<std::int32_t>(i);
    if (op.pass == OpPass::Forward) {
      if (op.segment.at() == segments.all.size()) {
        Segment& made = segments.all.emplace_back();
        made.first_forward = at;
      }
      CHECK(op.segment.at() + 1 == segments.all.size(), "forward ops of a segment are consecutive");
      segments.all.back().end_forward = at + 1;
      segments.all.back().layer = op.layer;  // of its last op: what leads into it may stand before the layer
    } else {
      Segment& segment = segments.all[op.segment.at()];
      if (segment.end_backward == 0) segment.first_backward = at;
      CHECK(segment.end_backward == 0 || segment.end_backward == at, "backward ops of a segment are consecutive");
      segment.end_backward = at + 1;
    }
  }
  for (std::size_t s = 0; s < segments.all.size(); ++s) {
    Segment& segment = segments.all[s];
    segment.name = name_of_segment(graph, segment, s == 0, s + 1 == segments.all.size());
    read_parameters(graph, segment);
  }
  return segments;
}

}  // namespace shardplan
