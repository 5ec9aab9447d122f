// The ranks around this one: rendezvous, agreement before data moves, groups along the axes of the mesh. Everything that moves
// bytes is c10d's.
//
// RankWorld meets the other ranks in a key-value store and opens one group of all ranks (Gloo, host memory). gloo_collectives adds
// one group for each axis of a program's mesh. A gather is one broadcast from each owner into its stretch, a reduce-scatter one
// reduction to each owner, issued together: neither takes memory beyond the buffer, and the library gets views without ownership,
// so that no buffer outlives its owner. A world of one opens nothing.
//
// Calling thread: one. Errors: PeerLost when a rank goes away or does not answer in time, naming the collective; ConfigError from
// agree.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Logging.h>  // before core/error.h, whose CHECK replaces the one here

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/step_program.h"
#include "executor/collectives.h"
#include "executor/launch.h"

namespace shardplan {

// A transfer under way; its tensor must stay as it is until wait() has returned.
class Transfer {
 public:
  virtual ~Transfer() = default;
  virtual void wait() = 0;
};

class RankWorld {
 public:
  RankWorld(const RankPlace& place, std::chrono::seconds timeout);
  ~RankWorld();
  RankWorld(const RankWorld&) = delete;
  RankWorld& operator=(const RankWorld&) = delete;

  [[nodiscard]] std::int32_t rank() const { return place_.rank; }
  [[nodiscard]] std::int32_t size() const { return place_.world; }
  [[nodiscard]] const RankPlace& place() const { return place_; }

  // ConfigError on every rank unless all gave the same value: "ranks disagree about the plan: rank 0 has ..., ranks 1 and 2 have
  // ...". `what` is asked once. Needs no group: ranks that disagree never exchange data.
  void agree(const std::string& what, const std::string& value, const std::string& remedy);

  void all_sum(std::span<double> values);
  // Every rank's text, by rank, on rank 0; empty elsewhere. Passes through the store: for reports, not for data.
  [[nodiscard]] std::vector<std::string> gather_texts(const std::string& what, const std::string& text);
  void barrier();
  [[nodiscard]] std::unique_ptr<Transfer> send(at::Tensor tensor, std::int32_t to);
  [[nodiscard]] std::unique_ptr<Transfer> receive(at::Tensor tensor, std::int32_t from);

  struct Held;  // store and group: rank_world_held.h
  [[nodiscard]] Held& held() { return *held_; }

 private:
  RankPlace place_;
  std::unique_ptr<Held> held_;
};

// Groups of this rank along every axis of degree above one. `world` outlives them.
[[nodiscard]] std::unique_ptr<Collectives> gloo_collectives(RankWorld& world, const std::vector<MeshAxis>& mesh);

// Ranks of this rank's group on an axis, ascending by index on the axis.
[[nodiscard]] std::vector<std::int32_t> ranks_on_axis(const MeshAxis& axis, std::int32_t rank);
[[nodiscard]] std::int32_t index_on_axis(const MeshAxis& axis, std::int32_t rank);

}  // namespace shardplan
