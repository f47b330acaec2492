// The driver's functions that the runtime library hands out by name.
#include <cuda.h>

#include <atomic>
#include <cstring>

#include "tests/support/emulated_gpu/gpu.h"

using namespace sherd::cuda::emulated;

namespace {

// The device looks at the word whenever it could go on; everything else on the stream is behind it.
CUresult wait_value(CUstream handle, CUdeviceptr address, cuuint32_t value, unsigned flags) {
  const cudaError_t status = call("cuStreamWaitValue32", [&](Gpu& g) {
    Stream* stream = g.find(reinterpret_cast<cudaStream_t>(handle));
    auto* word = reinterpret_cast<std::atomic<std::uint32_t>*>(address);
    if (!stream || flags != CU_STREAM_WAIT_VALUE_GEQ || address % 4 != 0) return cudaErrorInvalidValue;
    if (!device_memory().in_pinned(word, 4)) return cudaErrorInvalidValue;
    if (stream->capture) return cudaErrorStreamCaptureUnsupported;
    if (stream->device != current_device()) return cudaErrorInvalidResourceHandle;
    if (const auto op = g.enqueue(*stream, nullptr, {}, {word, value}); !op) return cudaErrorInvalidValue;
    return g.broken;
  });
  return status == cudaSuccess ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned, unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  return call("cudaGetDriverEntryPointByVersion", [&](Gpu& g) {
    const bool found = g.configuration.waits_for_words && std::strcmp(symbol, "cuStreamWaitValue32") == 0;
    *function = found ? reinterpret_cast<void*>(&wait_value) : nullptr;
    if (result) *result = found ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
  });
}
