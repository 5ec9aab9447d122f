// Cuts a stretch of consecutive forward ops out of a model, to be examined alone.
//
// What enters from before the stretch becomes an Input; the stretch's last value becomes the part's `loss`, whatever its shape.
#pragma once

#include "planner/graph/op_graph.h"

namespace shardplan {

struct Part {
  OpGraph graph;  // forward ops only
  ValueId input;  // the activation that enters
};

// Requires: a cut between segments before `first` and after `end`, both in [0, number of forward ops].
[[nodiscard]] Part cut_part(const OpGraph& forward, std::int32_t first, std::int32_t end);

}  // namespace shardplan
