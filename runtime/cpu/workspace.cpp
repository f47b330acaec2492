#include "runtime/cpu/workspace.h"

#include <sys/mman.h>

#include <array>

#include "runtime/tensor/no_copy.h"

namespace sherd::cpu {

namespace {
constexpr std::size_t kAlignment = 64;
// Buffers of an eighth of this and more lie on huge pages: a kernel that streams or strides through one would
// otherwise wait for address translation.
constexpr std::size_t kHugePage = std::size_t{2} << 20;

class Buffer : NoCopy {
 public:
  ~Buffer() { free(); }
  std::byte* at_least(std::int64_t bytes) {
    if (bytes > bytes_) {
      free();
      allocate(static_cast<std::size_t>(bytes));
      bytes_ = bytes;
    }
    return data_;
  }
  std::size_t reserved() const { return reserved_; }

 private:
  void allocate(std::size_t bytes) {
    alignment_ = bytes >= kHugePage / 8 ? kHugePage : kAlignment;
    if (alignment_ == kHugePage) bytes = (bytes + kHugePage - 1) / kHugePage * kHugePage;
    data_ = static_cast<std::byte*>(::operator new(bytes, std::align_val_t{alignment_}));
    if (alignment_ == kHugePage) ::madvise(data_, bytes, MADV_HUGEPAGE);
    reserved_ = bytes;
  }
  void free() {
    ::operator delete(data_, std::align_val_t{alignment_});
    data_ = nullptr;
    bytes_ = 0;
    reserved_ = 0;
  }
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
  std::size_t reserved_ = 0, alignment_ = kAlignment;
};

// Threads that run chunks have no rank context to keep them in.
std::array<Buffer, 6>& buffers() {
  thread_local std::array<Buffer, 6> buffers;
  return buffers;
}
}  // namespace

std::byte* thread_workspace(WorkspaceUse use, std::int64_t bytes) {
  return buffers()[static_cast<std::size_t>(use)].at_least(bytes);
}

std::int64_t thread_workspace_bytes() {
  std::size_t sum = 0;
  for (const Buffer& buffer : buffers()) sum += buffer.reserved();
  return static_cast<std::int64_t>(sum);
}

}  // namespace sherd::cpu
