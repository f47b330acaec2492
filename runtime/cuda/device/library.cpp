#include "runtime/cuda/device/library.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

namespace sherd::cuda {

namespace {

std::string beside_this_library(const std::string& file) {
  Dl_info info{};
  static const char here = 0;
  if (::dladdr(&here, &info) == 0 || !info.dli_fname) return {};
  const std::string path = info.dli_fname;
  const auto slash = path.rfind('/');
  return slash == std::string::npos ? std::string() : path.substr(0, slash + 1) + file;
}

std::string path_of(void* handle) {
  const link_map* map = nullptr;
  return ::dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 && map ? map->l_name : "";
}

}  // namespace

Library::Library(std::string file) : path_(std::move(file)) {
  const std::string beside = beside_this_library(path_);
  const bool is_beside = !beside.empty() && ::access(beside.c_str(), F_OK) == 0;
  handle_ = ::dlopen(is_beside ? beside.c_str() : path_.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle_) {
    path_ = path_of(handle_);
  } else {
    const char* why = ::dlerror();
    reason_ = why ? why : "dlopen failed";
  }
}

void Library::bind(std::initializer_list<Binding> bindings) {
  for (const Binding& binding : bindings) {
    if (!handle_) return;
    *binding.address = ::dlsym(handle_, binding.name);
    if (!*binding.address) refuse(path_ + " has no " + binding.name);
  }
}

void Library::refuse(const std::string& why) {
  handle_ = nullptr;
  reason_ = why;
}

std::string Library::describe(const std::string& version) const {
  return usable() ? version + ", " + path_ : "none: " + reason_;
}

}  // namespace sherd::cuda
