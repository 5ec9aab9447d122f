// The one entry of the CUDA part. Its library shares this process's LibTorch; nothing else crosses the border.
#pragma once

#include <string>
#include <vector>

#include "executor/device_machine.h"

namespace shardplan {

inline constexpr const char* kCudaPartFile = "libshardplan_cuda.so";
inline constexpr const char* kCudaPartEntry = "shardplan_open_cuda";

// False with `problem` set when the device is not there or NCCL refuses.
using OpenCudaPart = bool (*)(RankWorld::Held& held, const RankPlace& place, const std::vector<MeshAxis>& mesh,
                              DeviceMachine& machine, std::string& problem);

}  // namespace shardplan
