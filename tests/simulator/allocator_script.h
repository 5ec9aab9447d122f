// Scripts of allocations: what the model of the caching allocator and PyTorch's own are both run over.
//
//   conf TEXT                settings, as PYTORCH_ALLOC_CONF has them
//   device BYTES OUTSIDE     size of the device, and what others hold of it
//   alloc NUMBER BYTES STREAM
//   free NUMBER
//   record NUMBER STREAM     the block is in use on this stream too
//   reach STREAM             what waits for this stream has happened
//   empty                    empties the cache
//   # ...                    remark
//
// Each step gives one line: "accepted" for conf, nothing for device, else the verb, for alloc the block's address or
// "out-of-memory", then requested, allocated, active, inactive split and reserved bytes as current/peak, then segments, retries,
// failures, calls that took memory from the device and calls that gave it back.
#pragma once

#include <cstdint>
#include <string>

namespace shardplan {

// The lines that the model gives.
[[nodiscard]] std::string run_on_model(const std::string& script);

struct RandomScript {
  std::uint32_t seed = 0;
  int num_steps = 400;
  int num_streams = 2;
  std::string conf;  // empty: defaults
  std::int64_t device_bytes = 0;
  std::int64_t outside_bytes = 0;
  int most_live = 60;  // live blocks hover around this number
  bool with_records = true;
  std::int64_t size_factor = 1;  // every size is multiplied by it
};
// Sizes from a few bytes to some tens of MiB times size_factor, so that all pools, splits and failures occur.
[[nodiscard]] std::string random_script(const RandomScript& options);

}  // namespace shardplan
