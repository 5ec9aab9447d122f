// Transfers that share links: while k of them are active on a link, each moves at 1/k of its rate there.
//
// A transfer that occupies two links moves at the rate of the fuller one. Rates change when a transfer begins or ends; work is kept
// in integers, so that a shared transfer ends at most one nanosecond after the exact instant for each change of rate. Units:
// integer nanoseconds; work is the time a transfer takes alone.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/ids.h"
#include "simulator/collectives.h"

namespace shardplan {

class LinkNetwork {
 public:
  struct Completion {
    std::chrono::nanoseconds at{0};
    TaskId task;
  };

  // Requires: times never go back, and no active transfer completes before `now`.
  void begin(TaskId task, std::chrono::nanoseconds alone, LinkUse links, std::chrono::nanoseconds now);
  // The next transfer to complete if none begins before; of several at one instant the one that began first.
  [[nodiscard]] std::optional<Completion> next() const;
  // Takes away what next() gave.
  void complete(const Completion& completion);

 private:
  struct Transfer {
    TaskId task;
    std::int64_t work = 0;  // in parts of a nanosecond
    LinkUse links;
  };
  [[nodiscard]] std::int64_t parts_per_nanosecond(const Transfer& transfer) const;
  void advance(std::chrono::nanoseconds now);

  std::vector<Transfer> active_;  // in the order in which they began
  std::int64_t on_intra_node_ = 0, on_inter_node_ = 0;
  std::chrono::nanoseconds now_{0};
};

}  // namespace shardplan
