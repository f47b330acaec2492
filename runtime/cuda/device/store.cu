#include "runtime/cuda/device/store.h"

#include <cstring>

#include "runtime/cuda/device/device.h"
#include "runtime/cuda/device/launch.h"

namespace sherd::cuda {

namespace {

struct Bytes {
  unsigned char values[kMaxStoredBytes];
};

__global__ void store_kernel(unsigned char* to, Bytes from, std::int64_t bytes) {
  if (thread_index() < bytes) to[thread_index()] = from.values[thread_index()];
}

}  // namespace

cudaError_t find_code(cudaFuncAttributes* attributes) {
  cudaFuncAttributes found{};
  const cudaError_t status = cudaFuncGetAttributes(&found, reinterpret_cast<const void*>(store_kernel));
  (void)cudaGetLastError();
  if (attributes) *attributes = found;
  return status;
}

void store(cudaStream_t stream, void* to, const void* from, std::int64_t bytes) {
  Bytes values{};
  std::memcpy(values.values, from, static_cast<std::size_t>(bytes));
  launch(stream, store_kernel, {.threads = kMaxStoredBytes}, static_cast<unsigned char*>(to), values, bytes);
}

}  // namespace sherd::cuda
