// Removes ops whose results nothing reads, and the values and storages only they touched. Order of what stays is unchanged.
#pragma once

#include "planner/graph/op_graph.h"

namespace shardplan {

void prune(OpGraph& graph);

}  // namespace shardplan
