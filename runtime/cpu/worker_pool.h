#pragma once
// Where the chunks of a parallel loop run. Two engines: oneTBB for speed, and plain threads for ThreadSanitizer,
// which cannot see into Debian's libtbb and reports races that are not there.
#include <cstdint>
#include <memory>

namespace sherd {

/// A borrowed `void(int64 chunk)`: two words, no allocation. It must outlive the call it is passed to.
class ChunkBody {
 public:
  template <class Fn>
  explicit ChunkBody(const Fn& fn)
      : object_(&fn), call_([](const void* object, std::int64_t chunk) { (*static_cast<const Fn*>(object))(chunk); }) {}
  void operator()(std::int64_t chunk) const { call_(object_, chunk); }

 private:
  const void* object_;
  void (*call_)(const void*, std::int64_t);
};

/// Threads of one rank. Used from one thread only, the one that made it; that thread works too.
class WorkerPool {
 public:
  virtual ~WorkerPool() = default;
  /// Calls body(i) once for every i in [0, chunks), in any order, on any of the pool's threads, and returns when all
  /// have returned. What a body throws is rethrown here (one of them, if several throw).
  virtual void run(std::int64_t chunks, const ChunkBody& body) = 0;
};

/// A oneTBB arena of its own with `threads` slots, one of them the caller's.
std::unique_ptr<WorkerPool> make_tbb_pool(int threads);

/// `threads - 1` threads and the caller; thread w takes chunks w, w + threads, ... Nothing but fork and join orders
/// the threads, so a race between two bodies is one for ThreadSanitizer whatever the timing.
std::unique_ptr<WorkerPool> make_plain_pool(int threads);

}  // namespace sherd
