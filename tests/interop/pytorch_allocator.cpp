// Runs PyTorch's own caching allocator over a script of allocations, on a machine without a device.
//
// The script stands on standard input, one step a line (tests/simulator/allocator_script.h says which); on standard output
// there is one line per step: where the block lies, and the allocator's counters after the step.
#include <c10/core/AllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>

#include <cstdint>
#include <iostream>
#include <map>
#include <sstream>
#include <string>

#include "tests/interop/device_stand_in.h"

// Exported by libc10_cuda without a header: libtorch_cuda would set it.
namespace c10::cuda::_internal {
C10_CUDA_API void setHasPrimaryContext(bool (*has_primary_context)(c10::DeviceIndex));
}

namespace {

namespace allocator = c10::cuda::CUDACachingAllocator;

c10::cuda::CUDAStream stream_of(std::int64_t number) {
  if (number == 0) return c10::cuda::getDefaultCUDAStream(0);
  return c10::cuda::getStreamFromExternal(reinterpret_cast<cudaStream_t>(number << 12), 0);
}

void print_state(const std::string& step) {
  const auto stats = allocator::getDeviceStats(0);
  const auto print = [](const auto& stat) { std::cout << ' ' << stat[0].current << '/' << stat[0].peak; };
  std::cout << step;
  print(stats.requested_bytes);
  print(stats.allocated_bytes);
  print(stats.active_bytes);
  print(stats.inactive_split_bytes);
  print(stats.reserved_bytes);
  std::cout << ' ' << stats.segment[0].current << ' ' << stats.num_alloc_retries << ' ' << stats.num_ooms << ' '
            << stats.num_device_alloc << ' ' << stats.num_device_free << '\n';
}

}  // namespace

int main() {
  c10::cuda::_internal::setHasPrimaryContext([](c10::DeviceIndex) { return true; });
  std::map<std::int64_t, c10::DataPtr> blocks;
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string verb;
    words >> verb;
    if (verb.empty() || verb[0] == '#') continue;
    std::int64_t first = 0;
    std::int64_t second = 0;
    if (verb == "conf") {
      std::string text;
      words >> text;
      try {
        c10::CachingAllocator::setAllocatorSettings(text);
      } catch (const c10::Error& error) {
        std::cout << "refused " << error.what_without_backtrace() << '\n';
        return 0;
      }
      std::cout << "accepted\n";
      continue;
    }
    words >> first >> second;
    if (verb == "device") {
      set_stand_in_device(static_cast<std::uint64_t>(first), static_cast<std::uint64_t>(second));
      allocator::init(1);
      continue;
    }
    if (verb == "alloc") {
      std::int64_t stream = 0;
      words >> stream;
      c10::cuda::setCurrentCUDAStream(stream_of(stream));
      try {
        c10::DataPtr block = allocator::get()->allocate(static_cast<std::size_t>(second));
        verb += " " + std::to_string(reinterpret_cast<std::int64_t>(block.get()));
        blocks[first] = std::move(block);
      } catch (const c10::OutOfMemoryError&) {
        verb += " out-of-memory";
      }
    } else if (verb == "free") {
      blocks.erase(first);
    } else if (verb == "record") {
      allocator::recordStream(blocks.at(first), stream_of(second));
    } else if (verb == "reach") {
      reach_stream(stream_of(first).stream());
    } else if (verb == "empty") {
      allocator::emptyCache();
    } else {
      std::cerr << "unknown step: " << line << '\n';
      return 2;
    }
    print_state(verb);
  }
  for (auto& [number, block] : blocks) block.release_context();
  return 0;
}
