#pragma once
// Temporary memory of a plan. A plan is made twice: without memory, to learn how much it takes, and with it.
#include <cstddef>
#include <cstdint>

namespace sherd::comm {

class Scratch {
 public:
  /// Addresses of no memory, which nobody uses.
  Scratch() = default;
  explicit Scratch(std::byte* memory) : memory_(reinterpret_cast<std::uintptr_t>(memory)) {}
  /// The next `bytes` bytes, for any type and for vectors of a device.
  std::byte* take(std::int64_t bytes) {
    const auto at = static_cast<std::uintptr_t>(used_);
    used_ += (bytes + kAlign - 1) / kAlign * kAlign;
    return reinterpret_cast<std::byte*>(memory_ + at);
  }
  std::int64_t used() const { return used_; }

 private:
  static constexpr std::int64_t kAlign = 256;
  std::uintptr_t memory_ = kAlign;
  std::int64_t used_ = 0;
};

}  // namespace sherd::comm
