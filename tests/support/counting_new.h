#pragma once
// Replaces operator new of a whole test program by one that counts: one file of the program includes this, and no
// sanitized program does, where the sanitizer has an operator new of its own.
#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace sherd::testing {

/// Heap use of this thread.
struct HeapCount {
  std::int64_t allocations = 0, live_bytes = 0, peak_bytes = 0;
};
inline thread_local HeapCount t_heap;

/// Heap use of all threads.
inline std::atomic<std::int64_t> g_live_bytes{0}, g_peak_bytes{0};

/// The most bytes of the heap that this thread takes at a time in `call()`, beyond those that are taken before.
template <class Fn>
std::int64_t heap_peak(const Fn& call) {
  const std::int64_t before = t_heap.live_bytes;
  t_heap.peak_bytes = before;
  call();
  return t_heap.peak_bytes - before;
}

/// The same of all threads, whatever they do meanwhile.
template <class Fn>
std::int64_t heap_peak_of_all_threads(const Fn& call) {
  const std::int64_t before = g_live_bytes;
  g_peak_bytes = before;
  call();
  return g_peak_bytes - before;
}

inline void count_bytes(std::int64_t bytes) {
  t_heap.live_bytes += bytes;
  t_heap.peak_bytes = std::max(t_heap.peak_bytes, t_heap.live_bytes);
  const std::int64_t live = g_live_bytes += bytes;
  for (std::int64_t peak = g_peak_bytes; live > peak && !g_peak_bytes.compare_exchange_weak(peak, live);) continue;
}

inline void* counted_new(std::size_t bytes, std::size_t alignment) {
  void* memory = std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (!memory) throw std::bad_alloc();
  ++t_heap.allocations;
  count_bytes(static_cast<std::int64_t>(::malloc_usable_size(memory)));
  return memory;
}

inline void counted_delete(void* memory) noexcept {
  count_bytes(-static_cast<std::int64_t>(::malloc_usable_size(memory)));
  std::free(memory);
}

}  // namespace sherd::testing

// Not inlined: a free() seen in place of one of these looks to g++ like the wrong end of a new.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  return sherd::testing::counted_new(bytes, __STDCPP_DEFAULT_NEW_ALIGNMENT__);
}
[[gnu::noinline]] void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return sherd::testing::counted_new(bytes, static_cast<std::size_t>(alignment));
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { sherd::testing::counted_delete(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { sherd::testing::counted_delete(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept {
  sherd::testing::counted_delete(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  sherd::testing::counted_delete(memory);
}
