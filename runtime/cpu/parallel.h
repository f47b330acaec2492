#pragma once
// The one seam for parallelism inside a kernel. Work is cut by problem size only, never by the number of threads, so a
// kernel that writes per chunk, or combines per-chunk results in index order, gives the same bits on any number.
#include <algorithm>
#include <cstdint>

#include "runtime/cpu/worker_pool.h"

namespace sherd {

/// Threads that parallel loops of the calling thread use; 1 unless set_threads() was called on this thread.
int threads();

/// Sets threads() of the calling (rank) thread; Error unless 1 <= count <= kMaxThreads. Not from inside a body.
void set_threads(int count);

/// Number of chunks of parallel_for(n, grain, ...): chunk i covers [i * grain, min(n, (i + 1) * grain)).
constexpr std::int64_t num_chunks(std::int64_t n, std::int64_t grain) { return n <= 0 ? 0 : (n - 1) / grain + 1; }

namespace detail {
void run_chunks(std::int64_t chunks, const ChunkBody& body);
}

/// Calls fn(begin, end) once for every chunk of [0, n) and returns when all are done; each chunk has `grain` elements,
/// the last one what is left. Chunks run on threads() threads in any order, or in order on the caller if that is 1, if
/// there is one chunk only, or inside another parallel body. The first exception is rethrown; other chunks may then not
/// have run. A body must not block, allocate from the rank's arena, or use the rank's thread-locals.
template <class Fn>
void parallel_for(std::int64_t n, std::int64_t grain, const Fn& fn) {
  grain = std::max<std::int64_t>(grain, 1);
  const auto chunk = [n, grain, &fn](std::int64_t i) { fn(i * grain, std::min(n, (i + 1) * grain)); };
  detail::run_chunks(num_chunks(n, grain), ChunkBody(chunk));
}

}  // namespace sherd
