#include "runtime/comm/board/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <optional>
#include <system_error>

#include "runtime/tensor/error.h"

namespace sherd::comm {

namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

[[noreturn]] void fail_system(std::string_view what, std::string_view remedy = "") {
  throw CommError(fmt::format("shm_group: {}: {}{}", what, std::system_category().message(errno), remedy));
}

/// The limit of this process; empty without one.
std::optional<std::size_t> address_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return std::nullopt;
  return static_cast<std::size_t>(limit.rlim_cur);
}

std::string address_remedy() {
  const std::optional<std::size_t> limit = address_limit();
  if (!limit) return "; start fewer ranks on this host, or give the group smaller heaps";
  return fmt::format(
      "; the address space of this process is limited to {} bytes: raise the limit (ulimit -v), start "
      "fewer ranks, or give the group smaller heaps",
      *limit);
}

std::size_t used_address_space() {
  std::size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace

std::size_t to_huge_pages(std::size_t bytes) { return (bytes + kHugePage - 1) / kHugePage * kHugePage; }

// Half of what is left stays for all else: private memory, further groups, a mapping that is moved to an alignment.
std::size_t heap_bytes_for(int ranks, std::size_t host_memory, std::size_t address_space) {
  const std::size_t share = address_space / 2 / static_cast<std::size_t>(ranks) / kHugePage * kHugePage;
  return std::min(host_memory, share);
}

std::size_t default_heap_bytes(int ranks) {
  constexpr std::size_t kUserSpace = std::size_t{1} << 47;  // of x86-64 with page tables of four levels
  const std::size_t limit = address_limit().value_or(kUserSpace), used = used_address_space();
  const std::size_t memory =
      static_cast<std::size_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return heap_bytes_for(ranks, memory, limit > used ? limit - used : 0);
}

// Sealed, so that no process can shrink it under the others. The pages that ranks need to meet are allocated now, so
// that a lack of memory is an error here and not a fault later; the pages of heaps are allocated by the allocators
// that divide them.
Descriptor new_segment(std::size_t bytes, std::size_t allocated_bytes) {
  Descriptor memory(::memfd_create("sherd", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory) fail_system("cannot make a memory segment");
  if (::ftruncate(memory.get(), static_cast<off_t>(bytes)) != 0)
    fail_system(fmt::format("cannot make a memory segment of {} bytes; use smaller heaps", bytes));
  int error = EINTR;  // by a signal that is only noted
  while (error == EINTR) error = ::posix_fallocate(memory.get(), 0, static_cast<off_t>(allocated_bytes));
  if (error != 0) {
    errno = error;
    fail_system(fmt::format("cannot allocate {} bytes of shared memory; use a smaller window", allocated_bytes));
  }
  if (::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    fail_system("cannot seal the memory segment");
  return memory;
}

std::shared_ptr<std::byte> map_segment(const Descriptor& memory, std::size_t bytes) {
  struct stat state{};
  if (::fstat(memory.get(), &state) != 0) fail_system("cannot look at the memory segment");
  if (!std::cmp_equal(state.st_size, bytes))
    throw CommError(fmt::format("shm_group: the memory segment has {} bytes, expected {}", state.st_size, bytes));
  void* room = ::mmap(nullptr, bytes + kHugePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) fail_system(fmt::format("no room for a memory segment of {} bytes", bytes), address_remedy());
  auto* first = static_cast<std::byte*>(room);
  std::byte* start = first + -reinterpret_cast<std::uintptr_t>(first) % kHugePage;
  const int flags = MAP_SHARED | MAP_NORESERVE | MAP_FIXED;
  if (::mmap(start, bytes, PROT_READ | PROT_WRITE, flags, memory.get(), 0) == MAP_FAILED)
    fail_system("cannot map the memory segment", address_remedy());
  if (start > first) ::munmap(first, static_cast<std::size_t>(start - first));
  if (start < first + kHugePage) ::munmap(start + bytes, static_cast<std::size_t>(first + kHugePage - start));
  ::madvise(start, bytes, MADV_HUGEPAGE);  // a hint: the host may not grant it to shared memory
  return {start, [bytes](std::byte* address) { ::munmap(address, bytes); }};
}

}  // namespace sherd::comm
