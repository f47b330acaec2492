#pragma once
// CUDA's error codes as exceptions.
#include <cuda_runtime_api.h>

#include "runtime/tensor/error.h"

namespace sherd::cuda {

using sherd::check;  // the check of conditions, which the one below would hide

/// Throws Error "what: cudaErrorName: text" unless `status` is success; OutOfMemory when that is the reason.
void check(cudaError_t status, const char* what);

/// Makes `device` the thread's current one, as allocations, events and launches need. Other libraries may change it, so
/// it is asked for each time, which costs nanoseconds.
void make_current(int device);

}  // namespace sherd::cuda
