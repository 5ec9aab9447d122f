// Collectives between devices: NCCL groups along the axes of the mesh.
//
// A gather and a reduce-scatter work in place on the flat buffer: the own stretch is a slice of it, so that neither needs further
// memory. Calls are ordered on the current stream; wait() lets that stream wait, not the host.
#pragma once

#include <memory>
#include <vector>

#include "executor/process_groups.h"

namespace shardplan {

[[nodiscard]] std::unique_ptr<Collectives> nccl_collectives(RankWorld::Held& held, const RankPlace& place,
                                                            const std::vector<MeshAxis>& mesh, std::int8_t device);

}  // namespace shardplan
