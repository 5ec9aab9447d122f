#include "executor/process_groups.h"

#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <map>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "core/error.h"
#include "executor/rank_world_held.h"
#include "executor/store_host.h"

namespace shardplan {
namespace {

using Group = c10::intrusive_ptr<c10d::Backend>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

std::string first_line(const char* text) {
  const std::string all(text);
  return all.substr(0, all.find('\n'));
}

// Runs one exchange; whatever the library throws means that a peer is gone or silent.
template <class F>
auto exchange(const std::string& what, std::int32_t rank, F&& f) {
  try {
    return f();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& e) {
    throw PeerLost(fmt::format("{} failed: {}", what, first_line(e.what())), fmt::format("rank {}", rank),
                   "look at the rank that ended first");
  }
}

Group open_gloo(const c10::intrusive_ptr<c10d::Store>& store, const std::string& name, int rank, int size, const RankPlace& place,
                std::chrono::milliseconds timeout) {
  auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  if (!place.interface.empty()) {
    options->devices = {c10d::ProcessGroupGloo::createDeviceForInterface(place.interface)};
  } else if (place.local_world == place.world) {
    options->devices = {c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1")};
  } else {
    options->devices = {c10d::ProcessGroupGloo::createDefaultDevice()};
  }
  return c10::make_intrusive<c10d::ProcessGroupGloo>(c10::make_intrusive<c10d::PrefixStore>(name, store), rank, size, options);
}

std::vector<std::uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

std::string text_from_ranks(const std::vector<std::int32_t>& ranks) {
  if (ranks.size() == 1) return fmt::format("rank {} has", ranks.front());
  return fmt::format("ranks {} and {} have", fmt::join(ranks.begin(), ranks.end() - 1, ", "), ranks.back());
}

// The same memory without ownership. A worker thread of the library may drop its references long after wait() has returned; the
// memory must not live on with them.
at::Tensor unowned(const at::Tensor& tensor) {
  CHECK(tensor.is_cpu() && tensor.is_contiguous(), "host collectives work on contiguous host memory");
  return at::from_blob(tensor.mutable_data_ptr(), tensor.sizes(), tensor.options());
}

class GlooTransfer final : public Transfer {
 public:
  GlooTransfer(at::Tensor tensor, WorkPtr work, std::string what, std::int32_t rank)
      : tensor_(std::move(tensor)), work_(std::move(work)), what_(std::move(what)), rank_(rank) {}
  void wait() override {
    exchange(what_, rank_, [&] { work_->wait(); });
    work_.reset();
  }

 private:
  at::Tensor tensor_;
  WorkPtr work_;
  std::string what_;
  std::int32_t rank_;
};

struct AxisGroup {
  MeshAxis axis;
  std::int32_t index = 0;
  Group group;  // null for an axis of degree one
};

class GlooCollectives final : public Collectives {
 public:
  GlooCollectives(std::int32_t rank, std::vector<AxisGroup> axes) : rank_(rank), axes_(std::move(axes)) {}

  [[nodiscard]] std::int32_t index_on(AxisId axis) const override { return axes_[axis.at()].index; }

  void all_gather(AxisId axis, const at::Tensor& flat) override {
    run_on_stretches(axis, flat, "all_gather", [](const Group& group, std::vector<at::Tensor>& stretch, int owner) {
      c10d::BroadcastOptions options;
      options.rootRank = owner;
      return group->broadcast(stretch, options);
    });
  }

  void reduce_scatter(AxisId axis, const at::Tensor& flat) override {
    run_on_stretches(axis, flat, "reduce_scatter", [](const Group& group, std::vector<at::Tensor>& stretch, int owner) {
      c10d::ReduceOptions options;
      options.rootRank = owner;
      return group->reduce(stretch, options);
    });
  }

  void all_reduce(AxisId axis, const at::Tensor& tensor) override {
    const AxisGroup& a = axes_[axis.at()];
    if (!a.group) return;
    exchange(fmt::format("all_reduce over axis {}", a.axis.name), rank_, [&] {
      std::vector<at::Tensor> one{unowned(tensor)};
      a.group->allreduce(one)->wait();
    });
  }

 private:
  template <class Start>
  void run_on_stretches(AxisId axis, const at::Tensor& flat, const char* name, Start&& start) {
    const AxisGroup& a = axes_[axis.at()];
    if (!a.group) return;
    const std::int64_t stretch = flat.numel() / a.axis.degree;
    CHECK(stretch * a.axis.degree == flat.numel(), "a flat buffer is a whole number of stretches");
    exchange(fmt::format("{} over axis {}", name, a.axis.name), rank_, [&] {
      std::vector<WorkPtr> works;
      for (int owner = 0; owner < a.axis.degree; ++owner) {
        std::vector<at::Tensor> view{unowned(flat.narrow(0, owner * stretch, stretch))};
        works.push_back(start(a.group, view, owner));
      }
      for (const WorkPtr& w : works) w->wait();
    });
  }

  std::int32_t rank_;
  std::vector<AxisGroup> axes_;
};

}  // namespace

struct StoreHost::Held {
  c10::intrusive_ptr<c10d::TCPStore> store;
};

StoreHost::StoreHost() : held_(std::make_unique<Held>()) {
  c10d::TCPStoreOptions options;
  options.port = 0;  // any free one: jobs on one machine never meet
  options.isServer = true;
  options.waitWorkers = false;
  held_->store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}
StoreHost::~StoreHost() = default;
std::uint16_t StoreHost::port() const { return held_->store->getPort(); }

RankWorld::RankWorld(const RankPlace& place, std::chrono::seconds timeout) : place_(place), held_(std::make_unique<Held>()) {
  held_->timeout = timeout;
  if (place.world == 1) return;
  exchange(fmt::format("meeting the other ranks at {}:{}", place.store_host, place.store_port), place.rank, [&] {
    c10d::TCPStoreOptions options;
    options.port = place.store_port;
    options.isServer = place.hosts_store;
    options.waitWorkers = false;
    options.multiTenant = true;
    options.timeout = held_->timeout;
    held_->store = c10::make_intrusive<c10d::TCPStore>(place.store_host, options);
  });
}

RankWorld::~RankWorld() = default;

void RankWorld::agree(const std::string& what, const std::string& value, const std::string& remedy) {
  if (place_.world == 1) return;
  std::vector<std::string> values;
  exchange(fmt::format("agreement about {}", what), place_.rank, [&] {
    const auto key = [&](std::int32_t rank) { return fmt::format("agree/{}/{}", what, rank); };
    held_->store->set(key(place_.rank), bytes_of(value));
    for (std::int32_t r = 0; r < place_.world; ++r) {
      const std::vector<std::uint8_t> bytes = held_->store->get(key(r));
      values.emplace_back(bytes.begin(), bytes.end());
    }
  });
  std::vector<std::string> distinct;
  std::map<std::string, std::vector<std::int32_t>> holders;
  for (std::int32_t r = 0; r < place_.world; ++r) {
    const std::string& v = values[static_cast<std::size_t>(r)];
    if (holders[v].empty()) distinct.push_back(v);
    holders[v].push_back(r);
  }
  if (distinct.size() == 1) return;
  // The rank that hosts the store must not end before the others have read why.
  exchange(fmt::format("agreement about {}", what), place_.rank, [&] {
    const std::string seen = fmt::format("agree/{}/seen", what), all_saw = fmt::format("agree/{}/all saw", what);
    if (held_->store->add(seen, 1) == place_.world) held_->store->set(all_saw, bytes_of("yes"));
    if (place_.hosts_store) held_->store->wait({all_saw}, std::chrono::seconds(10));
  });
  std::vector<std::string> parts;
  for (const std::string& v : distinct) parts.push_back(fmt::format("{} {}", text_from_ranks(holders[v]), v));
  throw ConfigError(fmt::format("ranks disagree about {}: {}", what, fmt::join(parts, ", ")), "before any data moved", remedy);
}

namespace {
// The group of all ranks, opened at its first use: ranks that disagree never open it.
const Group& world_group(RankWorld::Held& held, const RankPlace& place) {
  if (!held.group)
    held.group = exchange("opening the group of all ranks", place.rank,
                          [&] { return open_gloo(held.store, "world", place.rank, place.world, place, held.timeout); });
  return held.group;
}
}  // namespace

void RankWorld::all_sum(std::span<double> values) {
  if (place_.world == 1) return;
  const Group& group = world_group(*held_, place_);
  exchange("sum over all ranks", place_.rank, [&] {
    std::vector<at::Tensor> one{at::from_blob(values.data(), {static_cast<std::int64_t>(values.size())}, at::kDouble)};
    group->allreduce(one)->wait();
  });
}

std::vector<std::string> RankWorld::gather_texts(const std::string& what, const std::string& text) {
  if (place_.world == 1) return {text};
  std::vector<std::string> texts;
  exchange(fmt::format("gathering {}", what), place_.rank, [&] {
    const auto key = [&](std::int32_t rank) { return fmt::format("gather/{}/{}", what, rank); };
    held_->store->set(key(place_.rank), bytes_of(text));
    if (place_.rank != 0) return;
    for (std::int32_t r = 0; r < place_.world; ++r) {
      const std::vector<std::uint8_t> bytes = held_->store->get(key(r));
      texts.emplace_back(bytes.begin(), bytes.end());
    }
  });
  return texts;
}

void RankWorld::barrier() {
  double nothing = 0;
  all_sum({&nothing, 1});
}

std::unique_ptr<Transfer> RankWorld::send(at::Tensor tensor, std::int32_t to) {
  const Group& group = world_group(*held_, place_);
  const std::string what = fmt::format("sending to rank {}", to);
  return exchange(what, place_.rank, [&]() -> std::unique_ptr<Transfer> {
    std::vector<at::Tensor> one{unowned(tensor)};
    return std::make_unique<GlooTransfer>(tensor, group->send(one, to, held_->sent[to]++), what, place_.rank);
  });
}

std::unique_ptr<Transfer> RankWorld::receive(at::Tensor tensor, std::int32_t from) {
  const Group& group = world_group(*held_, place_);
  const std::string what = fmt::format("receiving from rank {}", from);
  return exchange(what, place_.rank, [&]() -> std::unique_ptr<Transfer> {
    std::vector<at::Tensor> one{unowned(tensor)};
    return std::make_unique<GlooTransfer>(tensor, group->recv(one, from, held_->received[from]++), what, place_.rank);
  });
}

std::int32_t index_on_axis(const MeshAxis& axis, std::int32_t rank) { return rank / axis.stride % axis.degree; }

std::vector<std::int32_t> ranks_on_axis(const MeshAxis& axis, std::int32_t rank) {
  const std::int32_t first = rank - index_on_axis(axis, rank) * axis.stride;
  std::vector<std::int32_t> ranks;
  for (std::int32_t i = 0; i < axis.degree; ++i) ranks.push_back(first + i * axis.stride);
  return ranks;
}

std::unique_ptr<Collectives> gloo_collectives(RankWorld& world, const std::vector<MeshAxis>& mesh) {
  std::vector<AxisGroup> axes;
  for (const MeshAxis& axis : mesh) {
    AxisGroup a{.axis = axis, .index = index_on_axis(axis, world.rank()), .group = {}};
    if (axis.degree > 1) {
      const std::string name = fmt::format("axis/{}/{}", axis.name, ranks_on_axis(axis, world.rank()).front());
      a.group = exchange(fmt::format("opening the groups of axis {}", axis.name), world.rank(), [&] {
        return open_gloo(world.held().store, name, a.index, axis.degree, world.place(), world.held().timeout);
      });
    }
    axes.push_back(std::move(a));
  }
  return std::make_unique<GlooCollectives>(world.rank(), std::move(axes));
}

}  // namespace shardplan
