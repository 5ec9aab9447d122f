// What a program asks of the ranks around it: three collectives on an axis of the mesh.
//
// The interpreter knows no process group. Flat tensors are one-dimensional and hold `degree` equal stretches, the r-th belonging to
// the rank with index r on the axis. Every call is ordered on the current stream: when it returns, later work of that stream sees
// the result (on CPU: it is there). No call allocates device memory beyond what the tensors hold.
//
// Calling thread: the one that runs the program. Errors: DeviceError that names the collective and, where known, the peer.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "core/ids.h"

namespace shardplan {

class Collectives {
 public:
  virtual ~Collectives() = default;

  // This rank's index on the axis, 0 .. degree-1.
  [[nodiscard]] virtual std::int32_t index_on(AxisId axis) const = 0;

  // The own stretch is filled; afterwards all are. On CPU: one broadcast from each owner into its stretch, issued together.
  virtual void all_gather(AxisId axis, const at::Tensor& flat) = 0;

  // Afterwards the own stretch holds the sum over the ranks of the axis; the others are undefined. On CPU: one reduction to each
  // owner, issued together.
  virtual void reduce_scatter(AxisId axis, const at::Tensor& flat) = 0;

  // Sum over the ranks of the axis, in place.
  virtual void all_reduce(AxisId axis, const at::Tensor& tensor) = 0;
};

// A world of one rank: every collective is the identity.
class OneRank final : public Collectives {
 public:
  [[nodiscard]] std::int32_t index_on(AxisId) const override { return 0; }
  void all_gather(AxisId, const at::Tensor&) override {}
  void reduce_scatter(AxisId, const at::Tensor&) override {}
  void all_reduce(AxisId, const at::Tensor&) override {}
};

}  // namespace shardplan
