#include "runtime/os/host_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>

#include <unistd.h>

namespace sherd {

namespace {

// "max", as of a group without a limit, is no number.
std::int64_t limit_in(const char* file) {
  std::ifstream in(file);
  std::int64_t bytes = 0;
  return in >> bytes && bytes > 0 ? bytes : std::numeric_limits<std::int64_t>::max();
}

}  // namespace

std::int64_t host_memory() {
  const std::int64_t pages = ::sysconf(_SC_PHYS_PAGES), bytes = ::sysconf(_SC_PAGESIZE);
  return std::min({pages * bytes, limit_in("/sys/fs/cgroup/memory.max"),
                   limit_in("/sys/fs/cgroup/memory/memory.limit_in_bytes")});
}

}  // namespace sherd
