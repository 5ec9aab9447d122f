#include <c10/util/Logging.h>  // before core/error.h, whose CHECK replaces the one here

#include "executor/cuda/nccl_collectives.h"

#include <fmt/format.h>

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "core/error.h"
#include "executor/rank_world_held.h"

namespace shardplan {
namespace {

struct AxisGroup {
  MeshAxis axis;
  std::int32_t index = 0;
  c10::intrusive_ptr<c10d::ProcessGroupNCCL> group;  // null for an axis of degree one
};

class NcclCollectives final : public Collectives {
 public:
  NcclCollectives(std::int32_t rank, std::vector<AxisGroup> axes) : rank_(rank), axes_(std::move(axes)) {}

  [[nodiscard]] std::int32_t index_on(AxisId axis) const override { return axes_[axis.at()].index; }

  void all_gather(AxisId axis, const at::Tensor& flat) override {
    run(axis, "all_gather", [&](const AxisGroup& a) {
      at::Tensor whole = flat, own = own_stretch(a, flat);
      return a.group->_allgather_base(whole, own);
    });
  }
  void reduce_scatter(AxisId axis, const at::Tensor& flat) override {
    run(axis, "reduce_scatter", [&](const AxisGroup& a) {
      at::Tensor whole = flat, own = own_stretch(a, flat);
      return a.group->_reduce_scatter_base(own, whole);
    });
  }
  void all_reduce(AxisId axis, const at::Tensor& tensor) override {
    run(axis, "all_reduce", [&](const AxisGroup& a) {
      std::vector<at::Tensor> one{tensor};
      return a.group->allreduce(one);
    });
  }

 private:
  static at::Tensor own_stretch(const AxisGroup& a, const at::Tensor& flat) {
    const std::int64_t stretch = flat.numel() / a.axis.degree;
    CHECK(stretch * a.axis.degree == flat.numel(), "a flat buffer is a whole number of stretches");
    return flat.narrow(0, a.index * stretch, stretch);
  }

  template <class Start>
  void run(AxisId axis, const char* name, Start&& start) {
    const AxisGroup& a = axes_[axis.at()];
    if (!a.group) return;
    try {
      start(a)->wait();
    } catch (const c10::Error& e) {
      throw PeerLost(fmt::format("{} over axis {} failed: {}", name, a.axis.name, e.what_without_backtrace()),
                     fmt::format("rank {}", rank_), "look at the rank that ended first");
    }
  }

  std::int32_t rank_;
  std::vector<AxisGroup> axes_;
};

}  // namespace

std::unique_ptr<Collectives> nccl_collectives(RankWorld::Held& held, const RankPlace& place, const std::vector<MeshAxis>& mesh,
                                              std::int8_t device) {
  std::vector<AxisGroup> axes;
  for (const MeshAxis& axis : mesh) {
    AxisGroup a{.axis = axis, .index = index_on_axis(axis, place.rank), .group = {}};
    if (axis.degree > 1) {
      auto options = c10d::ProcessGroupNCCL::Options::create();
      options->timeout = held.timeout;
      const std::string name = fmt::format("nccl/{}/{}", axis.name, ranks_on_axis(axis, place.rank).front());
      a.group = c10::make_intrusive<c10d::ProcessGroupNCCL>(c10::make_intrusive<c10d::PrefixStore>(name, held.store), a.index,
                                                            axis.degree, options);
      a.group->eagerConnectSingleDevice(at::Device(at::kCUDA, device));
    }
    axes.push_back(std::move(a));
  }
  return std::make_unique<NcclCollectives>(place.rank, std::move(axes));
}

}  // namespace shardplan
