// A CUDA runtime without a device: enough of it for PyTorch's own caching allocator to run.
//
// Linked into a program that loads libc10_cuda, these functions come before those of the CUDA runtime. Memory is a number:
// addresses rise from 2^40 and are never given out twice, and what is taken is counted against the device's size. Events
// happen when reach_stream() says so.
#include "tests/interop/device_stand_in.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstring>
#include <map>
#include <string_view>

namespace {

std::uint64_t g_next_address = std::uint64_t{1} << 40;
std::uint64_t g_device_bytes = 0;
std::uint64_t g_outside_bytes = 0;
std::uint64_t g_taken_bytes = 0;
std::map<std::uint64_t, std::uint64_t> g_segments;               // address: bytes
std::map<CUmemGenericAllocationHandle, std::uint64_t> g_pages;   // handle: bytes
std::map<CUmemGenericAllocationHandle, int> g_page_uses;         // made and mapped
std::map<std::uint64_t, CUmemGenericAllocationHandle> g_mapped;  // address: handle
std::map<cudaEvent_t, cudaStream_t> g_pending;
std::uint64_t g_next_handle = 1;

std::uint64_t take_addresses(std::uint64_t bytes) {
  const std::uint64_t address = g_next_address;
  g_next_address += bytes;
  return address;
}

bool take_bytes(std::uint64_t bytes) {
  if (g_taken_bytes + bytes > g_device_bytes - g_outside_bytes) return false;
  g_taken_bytes += bytes;
  return true;
}

void drop_page_use(CUmemGenericAllocationHandle handle) {
  if (--g_page_uses[handle] > 0) return;
  g_taken_bytes -= g_pages[handle];
  g_pages.erase(handle);
  g_page_uses.erase(handle);
}

CUresult device_get(CUdevice* device, int) { return *device = 0, CUDA_SUCCESS; }
CUresult device_get_attribute(int* value, CUdevice_attribute, CUdevice) { return *value = 0, CUDA_SUCCESS; }
CUresult address_reserve(CUdeviceptr* address, size_t bytes, size_t, CUdeviceptr, unsigned long long) {
  *address = take_addresses(bytes);
  return CUDA_SUCCESS;
}
CUresult address_free(CUdeviceptr, size_t) { return CUDA_SUCCESS; }
CUresult page_create(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp*, unsigned long long) {
  if (!take_bytes(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  *handle = g_next_handle++;
  g_pages[*handle] = bytes;
  g_page_uses[*handle] = 1;
  return CUDA_SUCCESS;
}
CUresult page_release(CUmemGenericAllocationHandle handle) { return drop_page_use(handle), CUDA_SUCCESS; }
CUresult page_map(CUdeviceptr address, size_t, size_t, CUmemGenericAllocationHandle handle, unsigned long long) {
  g_mapped[address] = handle;
  ++g_page_uses[handle];
  return CUDA_SUCCESS;
}
CUresult page_unmap(CUdeviceptr address, size_t bytes) {
  for (auto at = g_mapped.lower_bound(address); at != g_mapped.end() && at->first < address + bytes;) {
    drop_page_use(at->second);
    at = g_mapped.erase(at);
  }
  return CUDA_SUCCESS;
}
CUresult set_access(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) { return CUDA_SUCCESS; }
CUresult granularity(size_t* bytes, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) {
  *bytes = std::size_t{2} << 20;
  return CUDA_SUCCESS;
}
CUresult error_string(CUresult, const char** text) { return *text = "refused by the stand-in", CUDA_SUCCESS; }
CUresult refuse() { return CUDA_ERROR_NOT_SUPPORTED; }

template <class Function>
void* erased(Function* function) {
  return reinterpret_cast<void*>(function);
}

void* driver_function(std::string_view name) {
  if (name == "cuDeviceGet") return erased(device_get);
  if (name == "cuDeviceGetAttribute") return erased(device_get_attribute);
  if (name == "cuMemAddressReserve") return erased(address_reserve);
  if (name == "cuMemAddressFree") return erased(address_free);
  if (name == "cuMemCreate") return erased(page_create);
  if (name == "cuMemRelease") return erased(page_release);
  if (name == "cuMemMap") return erased(page_map);
  if (name == "cuMemUnmap") return erased(page_unmap);
  if (name == "cuMemSetAccess") return erased(set_access);
  if (name == "cuMemGetAllocationGranularity") return erased(granularity);
  if (name == "cuGetErrorString") return erased(error_string);
  return erased(refuse);
}

}  // namespace

void set_stand_in_device(std::uint64_t device_bytes, std::uint64_t outside_bytes) {
  g_device_bytes = device_bytes;
  g_outside_bytes = outside_bytes;
}

void reach_stream(void* stream) {
  std::erase_if(g_pending, [stream](const auto& recorded) { return recorded.second == static_cast<cudaStream_t>(stream); });
}

extern "C" {

cudaError_t cudaMalloc(void** address, size_t bytes) {
  if (!take_bytes(bytes)) return cudaErrorMemoryAllocation;
  const std::uint64_t at = take_addresses(bytes);
  g_segments[at] = bytes;
  *address = reinterpret_cast<void*>(at);
  return cudaSuccess;
}
cudaError_t cudaFree(void* address) {
  const auto segment = g_segments.find(reinterpret_cast<std::uint64_t>(address));
  if (segment == g_segments.end()) return cudaErrorInvalidValue;
  g_taken_bytes -= segment->second;
  g_segments.erase(segment);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = g_device_bytes - g_outside_bytes - g_taken_bytes;
  *total = g_device_bytes;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  std::memset(properties, 0, sizeof *properties);
  std::strcpy(properties->name, "stand-in");
  properties->totalGlobalMem = g_device_bytes;
  properties->major = 8;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaDeviceSynchronize() { return g_pending.clear(), cudaSuccess; }
cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) { return *can = 0, cudaSuccess; }
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) { return *least = 0, *greatest = -1, cudaSuccess; }

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int) {
  *event = reinterpret_cast<cudaEvent_t>(g_next_handle++ << 4);
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  g_pending[event] = stream;
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) { return g_pending.contains(event) ? cudaErrorNotReady : cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t event) { return g_pending.erase(event), cudaSuccess; }

cudaError_t cudaStreamSynchronize(cudaStream_t stream) { return reach_stream(stream), cudaSuccess; }
cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
  return *status = cudaStreamCaptureStatusNone, cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "refused by the stand-in"; }
const char* cudaGetErrorName(cudaError_t) { return "refused"; }
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned int, unsigned long long,
                                             cudaDriverEntryPointQueryResult* found) {
  *function = driver_function(name);
  if (found != nullptr) *found = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

}  // extern "C"
