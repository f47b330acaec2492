#include "runtime/os/own_library.h"

#include <dlfcn.h>

namespace sherd {

std::string beside_own_library(const std::string& file) {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&beside_own_library), &info) == 0 || !info.dli_fname) return file;
  const std::string path = info.dli_fname;
  return path.substr(0, path.rfind('/') + 1) + file;
}

}  // namespace sherd
