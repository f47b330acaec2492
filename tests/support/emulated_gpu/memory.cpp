#include "tests/support/emulated_gpu/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <new>

namespace sherd::cuda::emulated {

namespace {
constexpr std::size_t kAlignment = 512;
constexpr std::size_t kFenceBytes = 512;  // after each allocation; writes there are found after the kernel
constexpr std::size_t kGrainBytes = std::size_t{2} << 20;
constexpr int kFence = 0xfd;  // a NaN too, but not the poison

std::size_t round_up(std::size_t n, std::size_t to) { return (n + to - 1) / to * to; }
std::size_t taken(std::size_t bytes) { return round_up(bytes, kAlignment) + kFenceBytes; }
void* pointer(std::uintptr_t address) { return reinterpret_cast<void*>(address); }
}  // namespace

Memory::Memory() {
  void* mapped =
      mmap(nullptr, kReservedBytes + kGrainBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  base_ = round_up(address(mapped), kGrainBytes);
  // Large pages, so that opening and closing changes few page-table entries.
  madvise(pointer(base_), kReservedBytes, MADV_HUGEPAGE);
  free_[base_] = kReservedBytes;
}

std::size_t Memory::used(int device) const {
  const auto found = used_.find(device);
  return found == used_.end() ? 0 : found->second;
}

std::size_t Memory::used() const {
  std::size_t total = 0;
  for (const auto& [device, bytes] : used_) total += bytes;
  return total;
}

int Memory::device_of(const void* p) const {
  const auto after = allocations_.upper_bound(address(p));
  return in_allocation(p, 1) ? devices_.at(std::prev(after)->first) : -1;
}

void* Memory::allocate(std::size_t bytes, int device) {
  if (bytes == 0 || bytes > capacity_ - std::min(used(device), capacity_)) return nullptr;
  const auto found =
      std::find_if(free_.begin(), free_.end(), [&](const auto& range) { return range.second >= taken(bytes); });
  if (found == free_.end()) return nullptr;
  const auto [start, size] = *found;
  free_.erase(found);
  if (size > taken(bytes)) free_[start + taken(bytes)] = size - taken(bytes);
  allocations_[start] = bytes;
  devices_[start] = device;
  used_[device] += bytes;
  const std::size_t end = round_up(start + taken(bytes) - base_, kGrainBytes);
  if (end > high_water_) {
    if (open_) mprotect(pointer(base_ + high_water_), end - high_water_, PROT_READ | PROT_WRITE);
    high_water_ = end;
  }
  open();
  std::memset(pointer(start), kPoison, bytes);
  std::memset(pointer(start + bytes), kFence, taken(bytes) - bytes);
  close();
  return pointer(start);
}

bool Memory::release(void* p) {
  const auto found = allocations_.find(address(p));
  if (found == allocations_.end()) return false;
  auto [start, bytes] = *found;
  allocations_.erase(found);
  used_[devices_.at(start)] -= bytes;
  devices_.erase(start);
  open();
  std::memset(p, kPoison, taken(bytes));
  close();
  std::size_t size = taken(bytes);
  const auto next = free_.lower_bound(start);
  if (next != free_.end() && start + size == next->first) {
    size += next->second;
    free_.erase(next);
  }
  const auto after = free_.lower_bound(start);
  if (after != free_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == start) {
      before->second += size;
      return true;
    }
  }
  free_[start] = size;
  return true;
}

void Memory::release_all() {
  while (!allocations_.empty()) release(pointer(allocations_.begin()->first));
}

bool Memory::inside(const Ranges& ranges, const void* p, std::size_t bytes) {
  const auto after = ranges.upper_bound(address(p));
  if (after == ranges.begin()) return false;
  const auto& [start, size] = *std::prev(after);
  return address(p) + bytes <= start + size;
}

std::pair<std::uintptr_t, std::size_t> Memory::find(const void* p, std::size_t bytes) const {
  for (const Ranges* ranges : {&allocations_, &pinned_})
    if (inside(*ranges, p, bytes)) return *std::prev(ranges->upper_bound(address(p)));
  return {0, 0};
}

void Memory::open() {
  if (open_++ == 0 && high_water_ > 0) mprotect(pointer(base_), high_water_, PROT_READ | PROT_WRITE);
}

void Memory::close() {
  if (--open_ == 0 && high_water_ > 0) mprotect(pointer(base_), high_water_, PROT_NONE);
}

std::string Memory::overrun() const {
  for (const auto& [start, bytes] : allocations_) {
    const auto* fence = static_cast<const unsigned char*>(pointer(start + bytes));
    const std::size_t length = taken(bytes) - bytes;
    const auto* hit = std::find_if(fence, fence + length, [](unsigned char c) { return c != kFence; });
    if (hit == fence + length) continue;
    char text[160];
    std::snprintf(text, sizeof text, "wrote %td bytes beyond the end of the allocation of %zu bytes at %p",
                  hit - fence + 1, bytes, pointer(start));
    return text;
  }
  return "";
}

Memory& device_memory() {
  static Memory& the_memory = *new Memory;  // not destroyed: a device may be at work as the process exits
  return the_memory;
}

}  // namespace sherd::cuda::emulated
