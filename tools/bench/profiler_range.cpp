#include "tools/bench/profiler_range.h"

#include <dlfcn.h>

#include <fmt/format.h>

namespace sherd::bench {

ProfilerRange::ProfilerRange() {
  void* driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);  // never closed: it is the process's driver
  if (!driver) {
    why_not_ = "there is no libcuda.so.1";
    return;
  }
  const auto start = reinterpret_cast<int (*)()>(::dlsym(driver, "cuProfilerStart"));
  const auto stop = reinterpret_cast<int (*)()>(::dlsym(driver, "cuProfilerStop"));
  if (!start || !stop) {
    why_not_ = "libcuda.so.1 has no cuProfilerStart";
  } else if (const int status = start(); status != 0) {
    why_not_ = fmt::format("cuProfilerStart gave {}", status);
  } else {
    stop_ = stop;
  }
}

ProfilerRange::~ProfilerRange() {
  if (stop_) stop_();
}

}  // namespace sherd::bench
