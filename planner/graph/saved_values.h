// What stays between forward and backward: the forward values that surviving backward ops read, storage by storage.
#pragma once

#include <vector>

#include "planner/graph/op_graph.h"

namespace shardplan {

struct SavedStorage {
  StorageId storage;
  std::vector<OpId> read_by;  // backward ops
};

// Parameters are left out; inputs, buffers and host scalars are in.
[[nodiscard]] std::vector<SavedStorage> saved_storages(const OpGraph& graph);

}  // namespace shardplan
