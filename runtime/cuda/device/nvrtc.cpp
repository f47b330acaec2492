#include "runtime/cuda/device/nvrtc.h"

#include <fmt/format.h>

namespace sherd::cuda {

// Its major version is that of the toolkit we were built with: the file's name ends with it.
Nvrtc::Nvrtc() : library(fmt::format("libnvrtc.so.{}", CUDART_VERSION / 1000)) {
  library.bind({{"nvrtcVersion", &get_version}});
  int major = 0, minor = 0;
  if (!library.usable()) return;
  if (get_version(&major, &minor) == NVRTC_SUCCESS) version = fmt::format("{}.{}", major, minor);
  else library.refuse(library.path() + " does not tell its version");
}

const Nvrtc& nvrtc() {
  static const Nvrtc instance;
  return instance;
}

}  // namespace sherd::cuda
