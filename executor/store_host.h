// A key-value store on a free port of this machine, where ranks that were forked here meet.
//
// Its owner is the launcher, so that the store outlives any rank. Starts threads: make it after forking.
#pragma once

#include <cstdint>
#include <memory>

namespace shardplan {

class StoreHost {
 public:
  StoreHost();
  ~StoreHost();
  StoreHost(const StoreHost&) = delete;
  StoreHost& operator=(const StoreHost&) = delete;
  [[nodiscard]] std::uint16_t port() const;

 private:
  struct Held;
  std::unique_ptr<Held> held_;
};

}  // namespace shardplan
