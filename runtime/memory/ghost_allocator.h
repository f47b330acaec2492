#pragma once
// Memory that is only counted. A ghost rank's storages have an id, bytes, a category and an account like any other, so
// the code that measures a step's memory predicts it too; limits and OutOfMemory say whether a model would fit. Blocks
// are addresses that no machine maps: they differ, can be added to and compared, and fault when somebody uses them.
#include <cstdint>

#include "runtime/memory/allocator.h"

namespace sherd {

/// One per device of a ghost rank, the host included.
class GhostAllocator final : public Allocator {
 public:
  static constexpr std::uintptr_t kAlignment = 64;
  /// Neither canonical with 4 levels of page tables nor with 5.
  static constexpr std::uintptr_t kBegin = std::uintptr_t{1} << 61, kEnd = std::uintptr_t{1} << 62;

  GhostAllocator() = default;

 private:
  ~GhostAllocator() override = default;
  // Addresses start again after 2 EiB: older blocks have gone by then.
  void* take(std::int64_t bytes, MemoryCategory) override {
    const std::uintptr_t size = (static_cast<std::uintptr_t>(bytes) + kAlignment - 1) / kAlignment * kAlignment;
    if (size > kEnd - next_) next_ = kBegin;
    void* const block = reinterpret_cast<void*>(next_);
    next_ += size;
    return block;
  }
  void put_back(void*, std::int64_t) noexcept override {}
  void poison(void*, std::int64_t) noexcept override {}

  std::uintptr_t next_ = kBegin;
};

}  // namespace sherd
