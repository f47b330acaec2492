// A fork-join pool that ThreadSanitizer sees through.
//
// A dynamic queue would order the threads by its own lock: a worker that starts late would be "after" everything the
// early ones did, and a race between two bodies would show only sometimes. Here each worker has one semaphore to start
// and one to end, and its share of the chunks is fixed, so the only edges are caller -> worker and worker -> caller.
#include <exception>
#include <memory>
#include <semaphore>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/cpu/worker_pool.h"

namespace sherd {
namespace {

struct Worker {
  std::binary_semaphore start{0};
  std::binary_semaphore end{0};
  std::exception_ptr error;
  std::thread thread;
};

class PlainPool final : public WorkerPool {
 public:
  explicit PlainPool(int threads) {
    for (int w = 1; w < threads; ++w) workers_.push_back(std::make_unique<Worker>());
    for (std::size_t w = 0; w < workers_.size(); ++w)
      workers_[w]->thread = std::thread([this, w] { serve(*workers_[w], static_cast<std::int64_t>(w) + 1); });
  }

  ~PlainPool() override {
    body_ = nullptr;
    for (auto& worker : workers_) worker->start.release();
    for (auto& worker : workers_) worker->thread.join();
  }

  void run(std::int64_t chunks, const ChunkBody& body) override {
    chunks_ = chunks;
    body_ = &body;
    for (auto& worker : workers_) worker->start.release();
    std::exception_ptr error = share(0);
    for (auto& worker : workers_) {
      worker->end.acquire();
      std::exception_ptr theirs = std::exchange(worker->error, nullptr);
      if (!error) error = std::move(theirs);
    }
    if (error) std::rethrow_exception(error);
  }

 private:
  // Runs the chunks of thread `first`; returns what a body threw.
  std::exception_ptr share(std::int64_t first) const {
    const auto step = static_cast<std::int64_t>(workers_.size()) + 1;
    try {
      for (std::int64_t i = first; i < chunks_; i += step) (*body_)(i);
    } catch (...) { return std::current_exception(); }
    return nullptr;
  }

  void serve(Worker& worker, std::int64_t index) const {
    for (;;) {
      worker.start.acquire();
      if (body_ == nullptr) return;
      worker.error = share(index);
      worker.end.release();
    }
  }

  std::vector<std::unique_ptr<Worker>> workers_;
  std::int64_t chunks_ = 0;
  const ChunkBody* body_ = nullptr;  // null tells the workers to leave
};

}  // namespace

std::unique_ptr<WorkerPool> make_plain_pool(int threads) { return std::make_unique<PlainPool>(threads); }

}  // namespace sherd
