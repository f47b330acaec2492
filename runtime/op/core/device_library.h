#pragma once
// Finds and opens libsherd_cuda.so. The core knows no CUDA; a host without driver, device or library runs on the CPU
// and can say why.
#include <string>

#include "runtime/exec/backend.h"

namespace sherd {

struct DeviceLibrary {
  Backend* backend = nullptr;  ///< null: not opened
  std::string path;            ///< of the library, when it was found
  std::string reason;          ///< why there is no backend
};

/// The CUDA library, opened at the first call: the file SHERD_CUDA_LIB names, else the one beside libsherd.so, else the
/// one the loader finds. Never closed. Never throws; any thread.
const DeviceLibrary& cuda_library();

/// What the library exports as `sherd_backend`: the numbers by which both sides know that they were built together,
/// and the backend.
struct BackendEntry {
  static constexpr std::uint32_t kAbi = 2;
  std::uint32_t abi = 0;
  std::uint64_t layout = 0;  ///< layout_fingerprint() where the library was compiled
  Backend* (*backend)() = nullptr;
};

}  // namespace sherd
