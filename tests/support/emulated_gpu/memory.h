#pragma once
// Device memory: a reserved range that host code cannot touch, except while a kernel or a copy runs.
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace sherd::cuda::emulated {

/// The byte that memory holds which nothing has written, or nothing may read any more: NaN in every float format, -1 in
/// every integer.
inline constexpr int kPoison = 0xff;

class Memory {
 public:
  Memory();
  /// Filled with poison, aligned to 512; null if the device's capacity does not allow it.
  void* allocate(std::size_t bytes, int device);
  /// False if `p` is no allocation. The bytes are poisoned.
  bool release(void* p);
  void release_all();
  /// Pinned host memory: the device may touch it.
  void add_pinned(const void* p, std::size_t bytes) { pinned_[address(p)] = bytes; }
  bool remove_pinned(const void* p) { return pinned_.erase(address(p)) > 0; }

  bool in_pool(const void* p) const { return address(p) >= base_ && address(p) < base_ + kReservedBytes; }
  /// All of the bytes lie in one live allocation.
  bool in_allocation(const void* p, std::size_t bytes) const { return inside(allocations_, p, bytes); }
  /// Whose memory `p` is in; -1: no device's.
  int device_of(const void* p) const;
  bool in_pinned(const void* p, std::size_t bytes) const { return inside(pinned_, p, bytes); }
  bool accessible(const void* p, std::size_t bytes) const { return in_allocation(p, bytes) || in_pinned(p, bytes); }
  /// Address and size of the device allocation or pinned memory that holds the bytes; {0, 0} if none does.
  std::pair<std::uintptr_t, std::size_t> find(const void* p, std::size_t bytes) const;

  /// Makes device memory accessible to this process, or not. Calls nest.
  void open();
  void close();
  /// Names an allocation that something wrote beyond the end of, or returns "".
  std::string overrun() const;

  std::size_t capacity() const { return capacity_; }
  void set_capacity(std::size_t bytes) { capacity_ = bytes; }
  std::size_t used(int device) const;
  std::size_t used() const;
  std::size_t allocations() const { return allocations_.size(); }

 private:
  using Ranges = std::map<std::uintptr_t, std::size_t>;  // address -> bytes
  static constexpr std::size_t kReservedBytes = std::size_t{64} << 30;
  static std::uintptr_t address(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }
  static bool inside(const Ranges& ranges, const void* p, std::size_t bytes);

  std::uintptr_t base_ = 0;
  std::size_t capacity_ = std::size_t{4} << 30, high_water_ = 0;
  std::map<int, std::size_t> used_;        // by device
  Ranges allocations_, free_, pinned_;     // of all devices
  std::map<std::uintptr_t, int> devices_;  // of allocations
  int open_ = 0;
};

/// The memory of the emulated devices, one range of addresses; guarded by the lock of the API.
Memory& device_memory();

}  // namespace sherd::cuda::emulated
