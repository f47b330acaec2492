// The runtime API of the emulated devices: devices, versions, errors.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <sstream>
#include <string>
#include <string_view>

#include <unistd.h>

#include "tests/support/emulated_gpu/gpu.h"

using namespace sherd::cuda::emulated;

namespace sherd::cuda::emulated {

int number_of_all(int device) {
  const char* const text = std::getenv("CUDA_VISIBLE_DEVICES");
  std::istringstream numbers(text ? text : "");
  std::string number;
  for (int i = 0; std::getline(numbers, number, ','); ++i)
    if (i == device) return static_cast<int>(std::strtol(number.c_str(), nullptr, 10));
  return device;
}

}  // namespace sherd::cuda::emulated

namespace {

struct ErrorText {
  cudaError_t status;
  const char* name;
  const char* text;
};

constexpr ErrorText kErrors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration", "invalid configuration argument"},
    {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection",
     "copy direction cannot be true of these pointers"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorNoKernelImageForDevice, "cudaErrorNoKernelImageForDevice",
     "no kernel image is available for execution on the device"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {cudaErrorLaunchOutOfResources, "cudaErrorLaunchOutOfResources", "too many resources requested for launch"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorNotPermitted, "cudaErrorNotPermitted", "operation not permitted"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureUnmatched, "cudaErrorStreamCaptureUnmatched", "capture was not begun in this stream"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined", "capturing stream has unjoined work"},
    {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation",
     "dependency created on uncaptured work in another stream"},
    {cudaErrorStreamCaptureWrongThread, "cudaErrorStreamCaptureWrongThread",
     "attempt to terminate a thread-local capture sequence from another thread"},
    {cudaErrorCapturedEvent, "cudaErrorCapturedEvent",
     "operation not permitted on an event last recorded in a capturing stream"},
};

const ErrorText* find(cudaError_t status) {
  const auto* found =
      std::find_if(std::begin(kErrors), std::end(kErrors), [&](const ErrorText& e) { return e.status == status; });
  return found == std::end(kErrors) ? nullptr : found;
}

}  // namespace

const char* cudaGetErrorName(cudaError_t status) {
  const ErrorText* found = find(status);
  return found ? found->name : "unrecognized error code";
}

// After a fault, its report instead of CUDA's few words.
const char* cudaGetErrorString(cudaError_t status) {
  const ErrorText* found = find(status);
  thread_local std::string text;
  text = found ? found->text : "unrecognized error code";
  const std::lock_guard guard(gpu().lock);
  if (status != cudaSuccess && status == gpu().broken) text += " (" + gpu().report + ")";
  return text.c_str();
}

// An error of a lost device stays; others are returned once.
cudaError_t cudaGetLastError() {
  const cudaError_t error = last_error();
  const std::lock_guard guard(gpu().lock);
  last_error() = gpu().broken;
  return error != cudaSuccess ? error : gpu().broken;
}

cudaError_t cudaPeekAtLastError() {
  const std::lock_guard guard(gpu().lock);
  return last_error() != cudaSuccess ? last_error() : gpu().broken;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 0;
  return call("cudaGetDeviceCount", [&](Gpu& g) {
    *count = g.configuration.devices;
    return cudaSuccess;
  });
}

cudaError_t cudaSetDevice(int device) {
  return call("cudaSetDevice", [&](Gpu& g) {
    if (device < 0 || device >= g.configuration.devices) return cudaErrorInvalidDevice;
    current_device() = device;
    return cudaSuccess;
  });
}

cudaError_t cudaGetDevice(int* device) {
  return call("cudaGetDevice", [&](Gpu&) {
    *device = current_device();
    return cudaSuccess;
  });
}

cudaError_t cudaDriverGetVersion(int* version) {
  const std::lock_guard guard(gpu().lock);  // asked also where there is no device; 0 is "no driver"
  *version = gpu().configuration.present == Present::no_driver ? 0 : gpu().configuration.driver_version;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return call("cudaGetDeviceProperties", [&](Gpu& g) {
    if (device < 0 || device >= g.configuration.devices) return cudaErrorInvalidDevice;
    *properties = {};
    std::strncpy(properties->name, "emulated GPU", sizeof properties->name - 1);
    char host[64] = {};  // each host has devices of its own
    (void)gethostname(host, sizeof host - 1);
    const std::size_t name = std::hash<std::string_view>()(host);
    std::memcpy(properties->uuid.bytes, &name, sizeof name);
    properties->uuid.bytes[15] = static_cast<char>(number_of_all(device));
    properties->totalGlobalMem = g.configuration.capacity;
    properties->sharedMemPerBlock = 48 * 1024;
    properties->sharedMemPerBlockOptin = 227 * 1024;
    properties->sharedMemPerMultiprocessor = 228 * 1024;
    properties->reservedSharedMemPerBlock = 1024;
    properties->regsPerBlock = properties->regsPerMultiprocessor = 65536;
    properties->warpSize = 32;
    properties->maxThreadsPerBlock = 1024;
    properties->maxThreadsDim[0] = properties->maxThreadsDim[1] = 1024;
    properties->maxThreadsDim[2] = 64;
    properties->maxGridSize[0] = 0x7fffffff;
    properties->maxGridSize[1] = properties->maxGridSize[2] = 65535;
    properties->major = g.configuration.major;
    properties->minor = g.configuration.minor;
    properties->multiProcessorCount = g.configuration.multiprocessors;
    properties->maxThreadsPerMultiProcessor = 2048;
    properties->maxBlocksPerMultiProcessor = 32;
    properties->l2CacheSize = 50 << 20;
    properties->unifiedAddressing = properties->concurrentKernels = properties->canMapHostMemory = 1;
    properties->asyncEngineCount = 3;
    properties->streamPrioritiesSupported = 1;
    return cudaSuccess;
  });
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp p{};
  if (const cudaError_t status = cudaGetDeviceProperties(&p, device); status != cudaSuccess) return status;
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount: *value = p.multiProcessorCount; return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor: *value = p.major; return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor: *value = p.minor; return cudaSuccess;
    case cudaDevAttrMaxThreadsPerBlock: *value = p.maxThreadsPerBlock; return cudaSuccess;
    case cudaDevAttrMaxThreadsPerMultiProcessor: *value = p.maxThreadsPerMultiProcessor; return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = static_cast<int>(p.sharedMemPerBlock); return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(p.sharedMemPerBlockOptin);
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = static_cast<int>(p.sharedMemPerMultiprocessor);
      return cudaSuccess;
    case cudaDevAttrL2CacheSize: *value = p.l2CacheSize; return cudaSuccess;
    case cudaDevAttrWarpSize: *value = p.warpSize; return cudaSuccess;
    default: return remember(cudaErrorNotSupported);
  }
}

cudaError_t cudaDeviceSynchronize() {
  return call("cudaDeviceSynchronize", [](Gpu& g) {
    if (Capture* capture = g.forbidding_capture()) {
      capture->broken = true;
      return cudaErrorStreamCaptureUnsupported;
    }
    g.count_sync();
    g.complete_all("cudaDeviceSynchronize", current_device());
    return g.broken;
  });
}
