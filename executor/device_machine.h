// The machine under a rank: its device, the collectives between devices, streams, and the memory meter, of one kind.
//
// The CUDA part is a library of its own (libshardplan_cuda.so beside the program), opened only when a rank runs on CUDA: a CPU run
// loads neither CUDA nor NCCL. Errors: DeviceError when the part is missing or the device is not there.
#pragma once

#include <memory>
#include <vector>

#include "executor/collectives.h"
#include "executor/memory_meter.h"
#include "executor/process_groups.h"
#include "executor/streams.h"

namespace shardplan {

struct DeviceMachine {
  at::Device device = at::kCPU;
  std::unique_ptr<Collectives> collectives;
  std::unique_ptr<Streams> streams;
  std::unique_ptr<MemoryMeter> memory;
};

// `world` outlives the machine.
[[nodiscard]] DeviceMachine open_cpu_machine(RankWorld& world, const std::vector<MeshAxis>& mesh);
[[nodiscard]] DeviceMachine open_cuda_machine(RankWorld& world, const std::vector<MeshAxis>& mesh);

}  // namespace shardplan
