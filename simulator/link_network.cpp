#include "simulator/link_network.h"

#include <algorithm>

#include "core/error.h"
#include "core/units.h"

namespace shardplan {
namespace {

// Divisible by every number of sharers up to 8, so that their rates are exact: least common multiple of 1..8.
constexpr std::int64_t kPartsPerNanosecond = 840;

}  // namespace

std::int64_t LinkNetwork::parts_per_nanosecond(const Transfer& transfer) const {
  std::int64_t sharers = 1;
  if (transfer.links.intra_node) sharers = std::max(sharers, on_intra_node_);
  if (transfer.links.inter_node) sharers = std::max(sharers, on_inter_node_);
  return std::max<std::int64_t>(1, kPartsPerNanosecond / sharers);
}

void LinkNetwork::advance(std::chrono::nanoseconds now) {
  CHECK(now >= now_, "simulated time does not go back");
  for (Transfer& transfer : active_)
    transfer.work = std::max<std::int64_t>(0, transfer.work - (now - now_).count() * parts_per_nanosecond(transfer));
  now_ = now;
}

void LinkNetwork::begin(TaskId task, std::chrono::nanoseconds alone, LinkUse links, std::chrono::nanoseconds now) {
  advance(now);
  active_.push_back({.task = task, .work = alone.count() * kPartsPerNanosecond, .links = links});
  on_intra_node_ += links.intra_node ? 1 : 0;
  on_inter_node_ += links.inter_node ? 1 : 0;
}

std::optional<LinkNetwork::Completion> LinkNetwork::next() const {
  std::optional<Completion> first;
  for (const Transfer& transfer : active_) {
    const std::int64_t rate = parts_per_nanosecond(transfer);
    const std::chrono::nanoseconds at = now_ + std::chrono::nanoseconds(round_up(transfer.work, rate) / rate);
    if (!first || at < first->at) first = Completion{.at = at, .task = transfer.task};
  }
  return first;
}

void LinkNetwork::complete(const Completion& completion) {
  advance(completion.at);
  const auto done = std::find_if(active_.begin(), active_.end(), [&](const Transfer& t) { return t.task == completion.task; });
  CHECK(done != active_.end() && done->work == 0, "a transfer completes once, when its work is done");
  on_intra_node_ -= done->links.intra_node ? 1 : 0;
  on_inter_node_ -= done->links.inter_node ? 1 : 0;
  active_.erase(done);
}

}  // namespace shardplan
