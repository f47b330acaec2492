#include "runtime/cuda/device/check.h"

#include "runtime/cuda/device/launch_log.h"

namespace sherd::cuda {

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) [[likely]]
    return;
  if (is_lasting(status))
    if (LaunchLog* log = LaunchLog::current()) log->lose(status, what);
  const std::string text = fmt::format("{}: {}: {}", what, cudaGetErrorName(status), cudaGetErrorString(status));
  static_cast<void>(cudaGetLastError());  // an error that is thrown does not surface again at the next check
  if (status == cudaErrorMemoryAllocation) throw OutOfMemory(text);
  throw Error(text);
}

void make_current(int device) {
  if (const LaunchLog* log = LaunchLog::current()) log->throw_if_lost();
  int now = -1;
  if (cudaGetDevice(&now) == cudaSuccess && now == device) return;
  check(cudaSetDevice(device), "choosing the device");
}

}  // namespace sherd::cuda
