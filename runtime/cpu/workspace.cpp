#include "runtime/cpu/workspace.h"

#include <array>

namespace sherd::cpu {

namespace {
constexpr std::align_val_t kAlignment{64};

class Buffer {
 public:
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { free(); }
  std::byte* at_least(std::int64_t bytes) {
    if (bytes > bytes_) {
      free();
      data_ = static_cast<std::byte*>(::operator new(static_cast<std::size_t>(bytes), kAlignment));
      bytes_ = bytes;
    }
    return data_;
  }

 private:
  void free() {
    ::operator delete(data_, kAlignment);
    data_ = nullptr;
    bytes_ = 0;
  }
  std::byte* data_ = nullptr;
  std::int64_t bytes_ = 0;
};
}  // namespace

std::byte* thread_workspace(WorkspaceUse use, std::int64_t bytes) {
  thread_local std::array<Buffer, 4> buffers;
  return buffers[static_cast<std::size_t>(use)].at_least(bytes);
}

}  // namespace sherd::cpu
