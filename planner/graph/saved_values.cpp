#include "planner/graph/saved_values.h"

namespace shardplan {

std::vector<SavedStorage> saved_storages(const OpGraph& graph) {
  std::vector<std::int32_t> place(graph.storages.size(), -1);
  std::vector<SavedStorage> saved;
  for (std::size_t i = static_cast<std::size_t>(graph.num_forward_ops); i < graph.ops.size(); ++i) {
    const OpId reader(static_cast<std::int64_t>(i));
    if (is_view(graph.ops[i].kind)) continue;  // its readers count
    for (const ValueId input : graph.ops[i].inputs) {
      if (!input.is_set()) continue;
      const StorageId storage = graph.value(input).storage;
      const StorageRole role = graph.storage(storage).role;
      if (role == StorageRole::Parameter || role == StorageRole::Gradient) continue;
      std::int32_t& at = place[storage.at()];
      if (at < 0) {
        at = static_cast<std::int32_t>(saved.size());
        saved.push_back({storage, {}});
      }
      std::vector<OpId>& readers = saved[static_cast<std::size_t>(at)].read_by;
      if (readers.empty() || readers.back() != reader) readers.push_back(reader);
    }
  }
  return saved;
}

}  // namespace shardplan
