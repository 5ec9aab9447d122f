// The machine a plan is made for: one kind of device, the node around it, the links between.
//
// Rates are one direction. Every number of a shipped file has a source (configs/README.md). What a file does not know is absent,
// and the model that needs it says so in its header.
// Units: bytes; bytes and flops per second; seconds. Errors: ConfigError from hardware_from_file.
// The machine at hand: core/local_hardware.h.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "core/dtype.h"

namespace shardplan {

enum class DeviceKind : std::uint8_t { Cuda, Cpu };

// A value known only as a range, both ends included.
struct ByteRange {
  std::int64_t low_bytes = 0;
  std::int64_t high_bytes = 0;
  bool operator==(const ByteRange&) const = default;
};

struct LinkSpec {
  std::string name;             // "NVLink 4", "PCIe 5", "InfiniBand", "loopback"
  double bytes_per_second = 0;  // of one device, one direction
  double latency_seconds = 0;   // per algorithm step
  bool operator==(const LinkSpec&) const = default;
};

struct HardwareSpec {
  std::string id;    // "h100-80g", "local-cpu"
  std::string name;  // "H100 SXM5 80GB"
  DeviceKind device = DeviceKind::Cuda;
  std::string compute_capability;  // "9.0"; empty on CPU
  std::int64_t usable_memory_bytes = 0;
  double memory_bytes_per_second = 0;
  std::map<DType, double> peak_flops_per_second;  // dense; fp32 on CUDA without TF32
  double matmul_fraction = 0.75;                  // of the peak that a large matrix product reaches
  double kernel_launch_seconds = 4e-6;
  LinkSpec intra_node;  // device to device inside a node
  LinkSpec inter_node;  // per device, across nodes
  LinkSpec host_link;   // device to host memory
  std::int32_t devices_per_node = 8;
  std::int64_t host_memory_bytes = 0;  // per node; 0 = not known
  ByteRange context;                   // device context per process
  ByteRange communicator;              // communication library, per communicator
  std::int32_t rounding_bytes = 512;   // allocator block granularity; 1 = none
  bool operator==(const HardwareSpec&) const = default;
};

[[nodiscard]] HardwareSpec hardware_from_json(const nlohmann::ordered_json& document, const std::string& file);
[[nodiscard]] HardwareSpec hardware_from_file(const std::filesystem::path& file);

// The file of `folder` (configs/hardware) with that id; letters and digits alone count. UsageError lists the nearest ids.
[[nodiscard]] HardwareSpec hardware_by_id(const std::filesystem::path& folder, const std::string& id);
[[nodiscard]] std::vector<std::string> hardware_ids(const std::filesystem::path& folder);

// This machine's CPU ranks (core/local_hardware.h has its GPUs).
[[nodiscard]] HardwareSpec local_cpu_hardware();

}  // namespace shardplan
