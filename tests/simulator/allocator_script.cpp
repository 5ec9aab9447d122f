#include "tests/simulator/allocator_script.h"

#include <array>
#include <map>
#include <random>
#include <sstream>
#include <variant>
#include <vector>

#include "simulator/caching_allocator.h"

namespace shardplan {
namespace {

std::string state_line(const std::string& step, const AllocatorStats& stats) {
  std::ostringstream line;
  line << step;
  for (const ByteCounter* counter : {&stats.requested, &stats.allocated, &stats.active, &stats.inactive_split, &stats.reserved})
    line << ' ' << counter->current_bytes << '/' << counter->peak_bytes;
  line << ' ' << stats.num_segments << ' ' << stats.num_alloc_retries << ' ' << stats.num_ooms << ' ' << stats.num_device_allocs
       << ' ' << stats.num_device_frees << '\n';
  return line.str();
}

std::int64_t random_bytes(std::mt19937& random) {
  const auto below = [&random](std::uint32_t limit) { return static_cast<std::int64_t>(random() % limit); };
  switch (random() % 8) {
    case 0:
      return 1 + below(2000);
    case 1:
      return 512 * (1 + below(64));
    case 2:
      return 1 + below(1 << 20);
    case 3:
      return (1 << 20) + below(3) - 1;
    case 4:
      return 1 + below(10 << 20);
    case 5:
      return (10 << 20) + below(3) - 1;
    case 6:
      return (1 << 20) * (1 + below(32));
    default:
      return (10 << 20) + below(60 << 20);
  }
}

}  // namespace

std::string run_on_model(const std::string& script) {
  CachingAllocatorOptions options;
  CachingAllocator allocator;
  std::map<std::int64_t, BlockId> blocks;
  std::istringstream lines(script);
  std::string output;
  std::string line;
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    std::string step;
    words >> step;
    if (step.empty() || step[0] == '#') continue;
    if (step == "conf") {
      std::string text;
      words >> text;
      options = allocator_options_from_text(text, options);
      output += "accepted\n";
      continue;
    }
    std::int64_t first = 0;
    std::int64_t second = 0;
    words >> first >> second;
    if (step == "device") {
      options.device_bytes = first;
      options.outside_bytes = second;
      allocator = CachingAllocator(options);
      continue;
    }
    if (step == "alloc") {
      std::int64_t stream = 0;
      words >> stream;
      const AllocationResult result = allocator.allocate(second, StreamId(stream));
      if (const BlockId* block = std::get_if<BlockId>(&result)) {
        blocks[first] = *block;
        step += " " + std::to_string(allocator.address(*block));
      } else {
        step += " out-of-memory";
      }
    } else if (step == "free") {
      const auto block = blocks.find(first);
      if (block != blocks.end()) allocator.free(block->second);
      blocks.erase(first);
    } else if (step == "record") {
      allocator.record_stream(blocks.at(first), StreamId(second));
    } else if (step == "reach") {
      allocator.reach(StreamId(first));
    } else if (step == "empty") {
      allocator.empty_cache();
    }
    output += state_line(step, allocator.stats());
  }
  return output;
}

std::string random_script(const RandomScript& options) {
  std::mt19937 random(options.seed);
  std::ostringstream script;
  if (!options.conf.empty()) script << "conf " << options.conf << '\n';
  script << "device " << options.device_bytes << ' ' << options.outside_bytes << '\n';
  // Whether an allocation succeeds shows only in a run: the model decides which numbers are alive.
  CachingAllocatorOptions settings;
  if (!options.conf.empty()) settings = allocator_options_from_text(options.conf);
  settings.device_bytes = options.device_bytes;
  settings.outside_bytes = options.outside_bytes;
  CachingAllocator allocator(settings);
  std::vector<std::pair<std::int64_t, BlockId>> live;
  const auto any_stream = [&] { return static_cast<std::int64_t>(random() % static_cast<std::uint32_t>(options.num_streams)); };
  // A training step asks for the same sizes again and again: half of the requests repeat an earlier size.
  std::vector<std::int64_t> sizes;
  for (int i = 0; i < 12; ++i) sizes.push_back(options.size_factor * random_bytes(random));
  for (std::int64_t step = 0; step < options.num_steps; ++step) {
    const std::uint32_t dice = random() % 1000;
    if (dice < 3) {
      script << "empty\n";
      allocator.empty_cache();
    } else if (dice < 30 && options.with_records) {
      const std::int64_t stream = any_stream();
      script << "reach " << stream << '\n';
      allocator.reach(StreamId(stream));
    } else if (dice < 80 && options.with_records && !live.empty()) {
      const auto& [number, block] = live[random() % live.size()];
      const std::int64_t stream = any_stream();
      script << "record " << number << ' ' << stream << '\n';
      allocator.record_stream(block, StreamId(stream));
    } else if (random() % static_cast<std::uint32_t>(2 * options.most_live) < live.size()) {
      const std::size_t which = random() % 3 == 0 ? live.size() - 1 : random() % live.size();
      script << "free " << live[which].first << '\n';
      allocator.free(live[which].second);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(which));
    } else {
      const std::int64_t bytes = random() % 2 == 0 ? sizes[random() % sizes.size()] : options.size_factor * random_bytes(random);
      const std::int64_t stream = any_stream();
      script << "alloc " << step << ' ' << bytes << ' ' << stream << '\n';
      const AllocationResult result = allocator.allocate(bytes, StreamId(stream));
      if (const BlockId* block = std::get_if<BlockId>(&result)) live.emplace_back(step, *block);
    }
  }
  return script.str();
}

}  // namespace shardplan
