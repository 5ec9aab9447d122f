// Events by time; those of one instant in the order in which they were added. That order makes a simulation deterministic.
//
// Units: integer nanoseconds.
#pragma once

#include <chrono>
#include <cstdint>
#include <queue>
#include <vector>

namespace shardplan {

template <class Event>
class EventQueue {
 public:
  void add(std::chrono::nanoseconds at, Event event) { heap_.push({at, next_number_++, event}); }
  [[nodiscard]] bool empty() const { return heap_.empty(); }
  // Requires: not empty.
  [[nodiscard]] std::chrono::nanoseconds next_time() const { return heap_.top().at; }
  Event take() {
    const Event event = heap_.top().event;
    heap_.pop();
    return event;
  }

 private:
  struct Entry {
    std::chrono::nanoseconds at;
    std::int64_t number;
    Event event;
    bool operator<(const Entry& other) const { return at != other.at ? at > other.at : number > other.number; }  // earliest on top
  };
  std::priority_queue<Entry> heap_;
  std::int64_t next_number_ = 0;
};

}  // namespace shardplan
