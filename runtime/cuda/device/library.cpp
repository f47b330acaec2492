#include "runtime/cuda/device/library.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include "runtime/cuda/device/python_wheels.h"

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

bool Library::open(const std::string& file) {
  handle_ = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle_) {
    path_ = path_of(handle_);
    reason_.clear();
  } else if (reason_.empty()) {
    const char* why = ::dlerror();
    reason_ = why ? why : "dlopen failed";
  }
  return handle_ != nullptr;
}

Library::Library(std::string file, const LibraryPlaces& places) : path_(std::move(file)) {
  if (!places.asked.empty()) {
    path_ = places.asked;
    if (!open(places.asked)) reason_ = std::string(places.variable) + " names it, but " + reason_;
    return;
  }
  const std::string beside = beside_this_library(path_);
  if (open(!beside.empty() && ::access(beside.c_str(), F_OK) == 0 ? beside : path_) || !*places.wheel) return;
  for (const std::string& wheel : files_of_wheels(process_environment(), places.wheel))
    if (open(wheel)) return;
}

void Library::bind(const std::vector<Binding>& bindings) {
  for (const Binding& binding : bindings) {
    if (!handle_) return;
    if (!bind_optional(binding)) refuse(path_ + " has no " + binding.name);
  }
}

bool Library::bind_optional(const Binding& binding) const {
  *binding.address = handle_ ? ::dlsym(handle_, binding.name) : nullptr;
  return *binding.address != nullptr;
}

void Library::refuse(const std::string& why) {
  handle_ = nullptr;
  reason_ = why;
}

std::string Library::describe(const std::string& version) const {
  return usable() ? version + ", " + path_ : "none: " + reason_;
}

}  // namespace sherd::cuda
