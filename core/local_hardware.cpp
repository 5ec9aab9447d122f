#include <sched.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <thread>

#include "core/error.h"
#include "core/hardware_spec.h"

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
std::int64_t total_memory_bytes() {
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

}  // namespace

HardwareSpec local_cpu_hardware() {
  // Rates are round figures for one server core, until `execute calibrate` measures them.
  HardwareSpec spec;
  spec.id = "local-cpu";
  spec.name = "CPU ranks of this machine";
  spec.device = DeviceKind::Cpu;
  spec.devices_per_node = usable_cores();
  spec.host_memory_bytes = total_memory_bytes();
  // A rank may use its share of main memory: as many ranks as cores must fit together.
  spec.usable_memory_bytes = spec.host_memory_bytes / spec.devices_per_node;
  spec.memory_bytes_per_second = 10e9;
  spec.peak_flops_per_second = {{DType::F32, 60e9}, {DType::BF16, 60e9}, {DType::F16, 60e9}, {DType::F64, 30e9}};
  spec.matmul_fraction = 0.75;
  spec.kernel_launch_seconds = 5e-6;
  spec.intra_node = {.name = "loopback", .bytes_per_second = 2e9, .latency_seconds = 50e-6};
  spec.inter_node = {.name = "Ethernet 10G", .bytes_per_second = 1.25e9, .latency_seconds = 100e-6};
  spec.host_link = {.name = "memory copy", .bytes_per_second = 5e9, .latency_seconds = 1e-6};
  spec.context = {.low_bytes = 0, .high_bytes = 0};
  spec.communicator = {.low_bytes = 0, .high_bytes = 0};
  spec.rounding_bytes = 1;
  return spec;
}

}  // namespace shardplan
