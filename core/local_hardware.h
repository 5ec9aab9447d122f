// The machine at hand as a HardwareSpec: its GPUs, found by name among the hardware files, or its CPU ranks.
//
// Reads the cores this process may use, main memory (or the control group's limit) and what nvidia-smi prints. Measures nothing:
// rates of CPU ranks are round defaults until `execute calibrate` measures them, rates of GPUs are those of the hardware file. A
// CPU rank may use main memory / cores: as many ranks as cores fit together. Errors: UsageError when the GPUs are of different
// kinds or no hardware file names them; IoError when main memory cannot be read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "core/hardware_spec.h"

namespace shardplan {

struct LocalGpu {
  std::string name;
  std::int64_t memory_bytes = 0;  // as the driver reports it, a little above what a process can use
  bool operator==(const LocalGpu&) const = default;
};

// From the lines of `nvidia-smi --query-gpu=name,memory.total --format=csv,noheader`; other lines are no GPUs.
[[nodiscard]] std::vector<LocalGpu> gpus_from_nvidia_smi(std::string_view text);

// The file of `folder` whose device_names hold the GPUs' name, for a node with that many devices. Requires: gpus not empty.
[[nodiscard]] HardwareSpec hardware_of_gpus(const std::filesystem::path& folder, const std::vector<LocalGpu>& gpus);

// This machine's GPUs; its CPU ranks where no GPU is found.
[[nodiscard]] HardwareSpec local_hardware(const std::filesystem::path& folder);

}  // namespace shardplan
