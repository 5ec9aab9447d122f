// What RankWorld holds of c10d; for process_groups.cpp and the CUDA part only.
#pragma once

#include <chrono>
#include <map>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "executor/process_groups.h"

namespace shardplan {

struct RankWorld::Held {
  c10::intrusive_ptr<c10d::Store> store;
  c10::intrusive_ptr<c10d::Backend> group;  // all ranks, host memory
  std::chrono::milliseconds timeout{};
  std::map<std::int32_t, int> sent, received;  // messages by peer: the tag of the next one
};

}  // namespace shardplan
