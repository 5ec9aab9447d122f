// Segments: the smallest stretches of the model with one activation in and one out.
//
// Found as articulation points over the activation edges of the forward ops (biconnected components, Boost.Graph). Inputs from the
// side (ids, targets, tables, masks) are no activation edges; ops that compute them belong to the segment where they stand: tables
// and masks to the first. Runs of one-op pieces merge: into the following larger piece, or into one last segment when they end in
// the loss; the first piece, the lookup with what makes the side inputs, stands alone. Forward ops of a segment are consecutive; so
// are its backward ops.
#pragma once

#include <string>
#include <vector>

#include "planner/graph/op_graph.h"

namespace shardplan {

struct Segment {
  std::string name;  // "embed", "layers.3.attention", "layers.3.mlp", "norm", "head"
  std::int32_t layer = -1;
  std::int32_t first_forward = 0, end_forward = 0;    // half-open ranges of OpGraph::ops
  std::int32_t first_backward = 0, end_backward = 0;  // empty when nothing runs backward
  std::vector<ParameterId> parameters;                // read by its forward ops, in model order; a tied one in both
};

struct Segments {
  std::vector<Segment> all;  // by SegmentId, in forward order
};

// Sets Op::segment on every op and returns the table.
[[nodiscard]] Segments find_segments(OpGraph& graph);
// Reads the table back from a graph on which find_segments ran.
[[nodiscard]] Segments segments_of(const OpGraph& graph);

}  // namespace shardplan
