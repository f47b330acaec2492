#pragma once
// A thread of a kernel: its own stack, switched to and from by hand in a few nanoseconds.
#include <cstddef>

namespace sherd::cuda::emulated {

class Fiber {
 public:
  /// Maps a stack with a guard page below it. Fibers of different `index` begin at different cache lines.
  explicit Fiber(std::size_t index);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Forgets where it was: the next switch to it calls `entry`, which never returns.
  void restart(void (*entry)());
  /// Goes on with this fiber; returns when it switches back, with the caller's place kept in `*home`.
  void resume(void** home);
  /// From this fiber back to the place kept in `home`.
  void leave(void* home);
  bool owns(const void* address) const;

 private:
  std::byte* memory_ = nullptr;
  std::size_t colour_ = 0;
  void* stack_pointer_ = nullptr;
};

}  // namespace sherd::cuda::emulated
