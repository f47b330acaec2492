#pragma once
// NVRTC, the compiler of kernels that are written at run time.
#include <cuda_runtime_api.h>
#include <nvrtc.h>

#include "runtime/cuda/device/library.h"

namespace sherd::cuda {

struct Nvrtc {
  Nvrtc();
  Library library;
  std::string version;  ///< "13.0"; empty if it is not usable
  decltype(&nvrtcVersion) get_version = nullptr;
};

/// Opened at the first call; any thread.
const Nvrtc& nvrtc();

}  // namespace sherd::cuda
