// Settings of PyTorch's device allocator, as its environment variable has them, and the memory it may draw on.
//
// Settings that only change speed or host memory are read and checked, but kept nowhere: they change no size on the device.
// Units: bytes. Errors: UsageError naming the setting and what it allows.
// Source: c10/core/AllocatorConfig.h and c10/cuda/CUDAAllocatorConfig.h of PyTorch 2.11; the parser is judged against it in
// tests/interop/allocator_against_pytorch_test.cpp.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/units.h"

namespace shardplan {

inline constexpr std::int64_t kAllocatorMib = std::int64_t{1} << 20;

// One number of divisions per power of two from 1 MiB to 32 GiB; smaller and larger requests use the first and last.
inline constexpr int kNumRoundupIntervals = 16;

struct CachingAllocatorOptions {
  // Blocks of this size and more are never split, and reused only for requests nearly as large. Empty: every block may be split.
  // Keeps big blocks whole, at the price of unused tails up to max_non_split_rounding_bytes.
  std::optional<std::int64_t> max_split_size_bytes;
  // What such a reuse may waste, not included. Empty: large_segment_bytes.
  std::optional<std::int64_t> max_non_split_rounding_bytes;
  // Segment for requests above 1 MiB and below 10 MiB, and page of large expandable segments.
  std::int64_t large_segment_bytes = 20 * kAllocatorMib;
  // Rounds a request up to a multiple of (power of two below it / divisions). 0 and 1: off. Fewer block sizes, more rounding.
  std::array<std::int64_t, kNumRoundupIntervals> roundup_power2_divisions{};
  // Cached segments are given back above this fraction of the allowed memory. 0: off. Without effect unless memory_fraction < 1.
  double garbage_collection_threshold_fraction = 0;
  // One growing address range per stream and pool in place of segments of fixed size.
  bool expandable_segments = false;
  // Part of device_bytes that segments may take; 1: no limit of its own.
  double memory_fraction = 1;

  // The device. Empty: it never runs out.
  std::optional<std::int64_t> device_bytes;
  // Taken from device_bytes by others: context, communication libraries.
  std::int64_t outside_bytes = 0;

  bool operator==(const CachingAllocatorOptions&) const = default;
};

// Text of PYTORCH_ALLOC_CONF (or PYTORCH_CUDA_ALLOC_CONF): "max_split_size_mb:128,expandable_segments:True,
// roundup_power2_divisions:[256:1,512:2,>:8]". Blanks do not count; of a key given twice the last holds. `base` gives what
// the text does not.
[[nodiscard]] CachingAllocatorOptions allocator_options_from_text(std::string_view text, const CachingAllocatorOptions& base = {});

}  // namespace shardplan
