#include "core/local_hardware.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "core/error.h"
#include "core/json_reader.h"
#include "core/units.h"

namespace shardplan {
namespace {

// Cores this process may run on; a container or a job scheduler may give fewer than the machine has.
std::int32_t usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<std::int32_t>(std::thread::hardware_concurrency()));
}

// MemTotal of /proc/meminfo, or the control group's limit where that is lower.
std::int64_t main_memory_bytes() {
  std::int64_t total = 0;
  std::ifstream meminfo("/proc/meminfo");
  std::string key, unit;
  for (std::int64_t kib = 0; meminfo >> key >> kib;) {
    std::getline(meminfo, unit);
    if (key == "MemTotal:") total = kib * 1024;
  }
  if (total <= 0)
    throw IoError("cannot read the size of main memory", "/proc/meminfo", "--hardware FILE with this machine's figures");
  std::ifstream limit_file("/sys/fs/cgroup/memory.max");  // holds "max" where there is no limit
  if (std::int64_t limit = 0; limit_file >> limit && limit > 0) total = std::min(total, limit);
  return total;
}

std::string trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r");
  if (first == std::string_view::npos) return {};
  return std::string(text.substr(first, text.find_last_not_of(" \t\r") - first + 1));
}

// What the command prints; empty where it is missing or fails.
std::string output_of(const char* command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command, "r"), ::pclose);
  std::string text;
  if (!pipe) return text;
  std::array<char, 4096> chunk{};
  while (const std::size_t got = std::fread(chunk.data(), 1, chunk.size(), pipe.get())) text.append(chunk.data(), got);
  return text;
}

std::vector<std::string> device_names(const std::filesystem::path& file) {
  const nlohmann::ordered_json document = json_from_file(file);
  JsonReader r(document, file.string());
  return r.has("device_names") ? r.strings("device_names") : std::vector<std::string>{};
}

}  // namespace

HardwareSpec local_cpu_hardware() {
  // Rates are round figures for one server core, until `execute calibrate` measures them.
  HardwareSpec spec;
  spec.id = "local-cpu";
  spec.name = "CPU ranks of this machine";
  spec.device = DeviceKind::Cpu;
  spec.devices_per_node = usable_cores();
  spec.host_memory_bytes = main_memory_bytes();
  spec.usable_memory_bytes = spec.host_memory_bytes / spec.devices_per_node;
  spec.memory_bytes_per_second = 10e9;
  spec.peak_flops_per_second = {{DType::F32, 60e9}, {DType::BF16, 60e9}, {DType::F16, 60e9}, {DType::F64, 30e9}};
  spec.matmul_fraction = 0.75;
  spec.kernel_launch_seconds = 5e-6;
  spec.intra_node = {.name = "loopback", .bytes_per_second = 2e9, .latency_seconds = 50e-6};
  spec.inter_node = {.name = "Ethernet 10 Gb", .bytes_per_second = 1.25e9, .latency_seconds = 100e-6};
  spec.host_link = {.name = "memory copy", .bytes_per_second = 5e9, .latency_seconds = 1e-6};
  spec.context = {.low_bytes = 0, .high_bytes = 0};
  spec.communicator = {.low_bytes = 0, .high_bytes = 0};
  spec.rounding_bytes = 1;
  return spec;
}

std::vector<LocalGpu> gpus_from_nvidia_smi(std::string_view text) {
  std::vector<LocalGpu> gpus;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const std::size_t comma = line.rfind(',');
    if (comma == std::string_view::npos) continue;
    const std::optional<std::int64_t> bytes = bytes_from_text(trimmed(line.substr(comma + 1)));
    if (bytes) gpus.push_back({.name = trimmed(line.substr(0, comma)), .memory_bytes = *bytes});
  }
  return gpus;
}

HardwareSpec hardware_of_gpus(const std::filesystem::path& folder, const std::vector<LocalGpu>& gpus) {
  CHECK(!gpus.empty(), "a machine without GPUs is described by its CPU ranks");
  const LocalGpu& first = gpus.front();
  for (const LocalGpu& gpu : gpus) {
    if (gpu != first)
      throw UsageError(fmt::format("this machine has GPUs of different kinds: \"{}\" and \"{}\"", first.name, gpu.name),
                       "nvidia-smi", "--gpu NAME for the smaller one");
  }
  // Boards of one name may come in two sizes: the nearest one is meant.
  std::optional<HardwareSpec> nearest_spec;
  const auto distance = [&first](const HardwareSpec& spec) { return std::abs(spec.usable_memory_bytes - first.memory_bytes); };
  for (const std::string& id : hardware_ids(folder)) {
    const std::filesystem::path file = folder / (id + ".json");
    const std::vector<std::string> names = device_names(file);
    if (std::find(names.begin(), names.end(), first.name) == names.end()) continue;
    HardwareSpec spec = hardware_from_file(file);
    if (!nearest_spec || distance(spec) < distance(*nearest_spec)) nearest_spec = std::move(spec);
  }
  // More than a tenth away is another board, or a part of one.
  if (!nearest_spec || distance(*nearest_spec) > nearest_spec->usable_memory_bytes / 10)
    throw UsageError(
        fmt::format("no hardware file is for this machine's \"{}\" with {}", first.name, text_from_bytes(first.memory_bytes)),
        folder.string(), "--hardware FILE with its figures (configs/README.md), or --hardware local-cpu");
  nearest_spec->devices_per_node = static_cast<std::int32_t>(gpus.size());
  nearest_spec->host_memory_bytes = main_memory_bytes();
  return *nearest_spec;
}

HardwareSpec local_hardware(const std::filesystem::path& folder) {
  const std::vector<LocalGpu> gpus =
      gpus_from_nvidia_smi(output_of("nvidia-smi --query-gpu=name,memory.total --format=csv,noheader 2>/dev/null"));
  return gpus.empty() ? local_cpu_hardware() : hardware_of_gpus(folder, gpus);
}

}  // namespace shardplan
