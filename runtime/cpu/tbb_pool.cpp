#include <tbb/blocked_range.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include "runtime/cpu/worker_pool.h"

namespace sherd {
namespace {

class TbbPool final : public WorkerPool {
 public:
  // One slot is reserved for the rank thread, so execute() never has to hand the loop to another thread.
  explicit TbbPool(int threads) : arena_(threads, 1) {}

  void run(std::int64_t chunks, const ChunkBody& body) override {
    arena_.execute([chunks, &body] {
      tbb::parallel_for(tbb::blocked_range<std::int64_t>(0, chunks),
                        [&body](const tbb::blocked_range<std::int64_t>& range) {
                          for (std::int64_t i = range.begin(); i < range.end(); ++i) body(i);
                        });
    });
  }

 private:
  tbb::task_arena arena_;
};

}  // namespace

std::unique_ptr<WorkerPool> make_tbb_pool(int threads) { return std::make_unique<TbbPool>(threads); }

}  // namespace sherd
