#include "runtime/cuda/attention/cudnn_api.h"

#include <fmt/format.h>

#include "runtime/cuda/device/launch_log.h"

namespace sherd::cuda {

namespace {

// Older ones have known faults, which show as wrong gradients only. NVIDIA's cudnn-frontend refuses attention on 9.10.0
// and 9.10.1 ("known bugs"), and up to 9.15.0 it gives the backward graph a mask of padding, which ours has not, where
// the number of keys is no multiple of 128. Below 9.6 the sum of dQ needs clearing before.
constexpr std::size_t kOldest = 91600;

std::string version_text(std::size_t v) { return fmt::format("{}.{}.{}", v / 10000, v / 100 % 100, v % 100); }

}  // namespace

// The name carries the major version we were built with: another one has another interface.
CudnnApi::CudnnApi() : library(fmt::format("libcudnn.so.{}", CUDNN_MAJOR)) {
  library.bind({{"cudnnGetVersion", &get_version},
                {"cudnnGetErrorString", &error_string},
                {"cudnnGetLastErrorString", &last_error_string},
                {"cudnnCreate", &create},
                {"cudnnDestroy", &destroy},
                {"cudnnSetStream", &set_stream},
                {"cudnnBackendCreateDescriptor", &create_descriptor},
                {"cudnnBackendDestroyDescriptor", &destroy_descriptor},
                {"cudnnBackendSetAttribute", &set_attribute},
                {"cudnnBackendGetAttribute", &get_attribute},
                {"cudnnBackendFinalize", &finalize},
                {"cudnnBackendExecute", &execute}});
  if (!library.usable()) return;
  version = version_text(get_version());
  if (get_version() < kOldest)
    library.refuse(
        fmt::format("{} is version {}, attention needs {} or newer: the gradients of older ones have known faults",
                    library.path(), version, version_text(kOldest)));
}

const CudnnApi& cudnn_api() {
  static const CudnnApi instance;
  return instance;
}

void check_cudnn(cudnnStatus_t status, const char* what) {
  if (status == CUDNN_STATUS_SUCCESS) [[likely]]
    return;
  char why[1024] = "";
  cudnn_api().last_error_string(why, sizeof why);
  const std::string text =
      fmt::format("cuDNN: {}: {}{}{}", what, cudnn_api().error_string(status), *why ? ": " : "", why);
  if (static_cast<int>(status) / 1000 == static_cast<int>(CUDNN_STATUS_NOT_SUPPORTED) / 1000)
    throw CudnnUnsupported(text);
  check_device(what);
  throw Error(text);
}

}  // namespace sherd::cuda
