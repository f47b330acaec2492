#include "runtime/cpu/parallel.h"

#include <memory>

#include "runtime/os/allowed_cpus.h"
#include "runtime/tensor/error.h"
#include "runtime/tensor/for_scope.h"

namespace sherd {
namespace {

// The rank thread's own pool: ranks that are threads of one process never wait for each other's loops.
struct Context {
  int threads = 1;
  bool inside = false;
  std::unique_ptr<WorkerPool> pool;
};

Context& context() {
  thread_local Context instance;
  return instance;
}

std::unique_ptr<WorkerPool> make_pool(int threads) {
#if SHERD_PLAIN_POOL  // Defined by the build under ThreadSanitizer; see worker_pool.h.
  return make_plain_pool(threads);
#else
  return make_tbb_pool(threads);
#endif
}

}  // namespace

int threads() { return context().threads; }

void set_threads(int count) {
  check(count >= 1 && count <= kMaxThreads, "set_threads: {} threads asked for; give 1 to {}", count, kMaxThreads);
  Context& current = context();
  check(!current.inside, "set_threads: called from inside a parallel body");
  if (count == current.threads) return;
  current.pool.reset();
  current.threads = count;
}

void detail::run_chunks(std::int64_t chunks, const ChunkBody& body) {
  Context& current = context();
  if (current.threads == 1 || chunks <= 1 || current.inside) {
    for (std::int64_t i = 0; i < chunks; ++i) body(i);
    return;
  }
  if (!current.pool) current.pool = make_pool(current.threads);
  const ForScope inside(&current.inside, true);
  current.pool->run(chunks, body);
}

}  // namespace sherd
