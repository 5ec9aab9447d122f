#include "executor/device_machine.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <filesystem>

#include "core/error.h"
#include "executor/counting_allocator.h"
#include "executor/cuda/cuda_part.h"

namespace shardplan {

DeviceMachine open_cpu_machine(RankWorld& world, const std::vector<MeshAxis>& mesh) {
  DeviceMachine machine;
  machine.collectives = gloo_collectives(world, mesh);
  machine.streams = std::make_unique<SynchronousStreams>();
  machine.memory = std::make_unique<CountingMeter>();
  return machine;
}

DeviceMachine open_cuda_machine(RankWorld& world, const std::vector<MeshAxis>& mesh) {
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  const std::filesystem::path library = program.parent_path() / "lib" / kCudaPartFile;
  void* part = ::dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL);  // never closed: its types live as long as the process
  if (part == nullptr) {
    throw DeviceError(fmt::format("the CUDA part cannot be loaded: {}", ::dlerror()), library.string(),
                      "build with -DSHARDPLAN_NCCL=ON where the CUDA toolkit is, or run a plan made for CPU ranks");
  }
  auto* open = reinterpret_cast<OpenCudaPart>(::dlsym(part, kCudaPartEntry));
  if (open == nullptr)
    throw DeviceError(fmt::format("the CUDA part has no entry {}", kCudaPartEntry), library.string(),
                      "build it from the same sources");
  DeviceMachine machine;
  std::string problem;
  if (!open(world.held(), world.place(), mesh, machine, problem)) {
    throw DeviceError(problem, fmt::format("rank {}", world.rank()), "plan for the devices of this machine: plan --hardware local");
  }
  return machine;
}

}  // namespace shardplan
