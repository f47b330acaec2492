#pragma once
// CUDA's error codes as exceptions.
#include <cuda_runtime_api.h>

#include "runtime/tensor/error.h"

namespace sherd::cuda {

using sherd::check;  // the check of conditions, which the one below would hide

/// Throws Error "what: cudaErrorName: text" unless `status` is success; OutOfMemory when that is the reason. If the
/// device is lost, the error is the one of the thread's LaunchLog.
void check(cudaError_t status, const char* what);

/// Makes `device` the thread's current one, as allocations, events and launches need. Other libraries may change it, so
/// it is asked for each time, which costs nanoseconds. Throws if the thread's device is lost.
void make_current(int device);

}  // namespace sherd::cuda
