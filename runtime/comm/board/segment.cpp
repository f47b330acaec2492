#include "runtime/comm/board/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "runtime/tensor/error.h"

namespace sherd::comm {

namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

[[noreturn]] void fail_system(std::string_view what) {
  throw CommError(fmt::format("shm_group: {}: {}", what, std::system_category().message(errno)));
}

}  // namespace

std::size_t to_huge_pages(std::size_t bytes) { return (bytes + kHugePage - 1) / kHugePage * kHugePage; }

// Sealed, so that no process can shrink it under the others. The pages that ranks need to meet are allocated now, so
// that a lack of memory is an error here and not a fault later; the pages of heaps are allocated by the allocators
// that divide them.
Descriptor new_segment(std::size_t bytes, std::size_t allocated_bytes) {
  Descriptor memory(::memfd_create("sherd", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory) fail_system("cannot make a memory segment");
  if (::ftruncate(memory.get(), static_cast<off_t>(bytes)) != 0)
    fail_system(fmt::format("cannot make a memory segment of {} bytes; use smaller heaps", bytes));
  const int error = ::posix_fallocate(memory.get(), 0, static_cast<off_t>(allocated_bytes));
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
  if (room == MAP_FAILED) fail_system(fmt::format("no room for a memory segment of {} bytes", bytes));
  auto* first = static_cast<std::byte*>(room);
  std::byte* start = first + -reinterpret_cast<std::uintptr_t>(first) % kHugePage;
  const int flags = MAP_SHARED | MAP_NORESERVE | MAP_FIXED;
  if (::mmap(start, bytes, PROT_READ | PROT_WRITE, flags, memory.get(), 0) == MAP_FAILED)
    fail_system("cannot map the memory segment");
  if (start > first) ::munmap(first, static_cast<std::size_t>(start - first));
  if (start < first + kHugePage) ::munmap(start + bytes, static_cast<std::size_t>(first + kHugePage - start));
  ::madvise(start, bytes, MADV_HUGEPAGE);  // a hint: the host may not grant it to shared memory
  return {start, [bytes](std::byte* address) { ::munmap(address, bytes); }};
}

}  // namespace sherd::comm
