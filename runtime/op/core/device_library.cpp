#include "runtime/op/core/device_library.h"

#include <dlfcn.h>
#include <unistd.h>

#include <sherd_header_hash.h>

#include "runtime/op/core/layout_fingerprint.h"
#include "runtime/os/allowed_cpus.h"
#include "runtime/os/own_library.h"
#include "runtime/os/settings.h"

namespace sherd {

namespace {

constexpr const char* kFile = "libsherd_cuda.so";

std::string candidate() {
  if (std::string asked = requested_cuda_library(); !asked.empty()) return asked;
  const std::string beside = beside_own_library(kFile);
  return ::access(beside.c_str(), F_OK) == 0 ? beside : kFile;
}

DeviceLibrary open_cuda() {
  DeviceLibrary library;
  library.path = candidate();
  const KeepAffinity keep;
  // Symbols stay local, so that a second CUDA runtime in the process (a user's, PyTorch's) does not meet this one.
  void* handle = ::dlopen(library.path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    const char* why = ::dlerror();
    library.reason = why ? why : "dlopen failed";
    return library;
  }
  const auto entry_of = reinterpret_cast<const BackendEntry* (*)()>(::dlsym(handle, "sherd_backend"));
  if (!entry_of) {
    library.reason = library.path + " exports no sherd_backend: it is no backend of sherd";
    return library;
  }
  const BackendEntry& entry = *entry_of();
  constexpr std::uint64_t kLayout = layout_fingerprint(kHeaderHash);
  if (entry.abi != BackendEntry::kAbi || entry.layout != kLayout) {
    library.reason = fmt::format(
        "{} was built from other sources (ABI {}/{:016x}, this library has {}/{:016x}); build both together",
        library.path, entry.abi, entry.abi == BackendEntry::kAbi ? entry.layout : 0, BackendEntry::kAbi, kLayout);
    return library;
  }
  try {
    Backend* const backend = entry.backend();
    add_kernels(*backend);
    library.backend = backend;
  } catch (const Error& error) { library.reason = fmt::format("{}: {}", library.path, error.what()); }
  return library;
}

}  // namespace

const DeviceLibrary& cuda_library() {
  static const DeviceLibrary library = open_cuda();
  return library;
}

Backend& backend_of(Device device) {
  check(device.has_backend(), "{} has no backend library", to_string(device));
  const DeviceLibrary& library = cuda_library();
  check(library.backend != nullptr,
        "device {}: no CUDA backend: {}. `sherd info` lists what was found; use the cpu device on this host",
        to_string(device), library.reason);
  const int count = library.backend->num_devices();
  check(count > 0, "device {}: {}", to_string(device), library.backend->why_no_devices());
  check(device.index < count, "device {}: this host has {} CUDA device{}", to_string(device), count,
        count == 1 ? "" : "s");
  return *library.backend;
}

}  // namespace sherd
