#pragma once
// A queue of the host: one thread and a list of closures. If it is idle when somebody waits for an item, the rank's
// thread runs the item itself.
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/exec/context.h"
#include "runtime/exec/queue.h"
#include "runtime/exec/queue_failures.h"
#include "runtime/exec/queue_item.h"
#include "runtime/exec/running_op.h"

namespace sherd {

/// On a ghost rank nothing runs and no thread is started: items are lent storages and let go of them, as ever.
///
/// A failure (an exception in `run`) fails the queue: what was submitted until somebody waits is skipped, the bytes it
/// was to write raise the same error at every touch, and what comes after runs again.
class HostQueue final : public Queue {
 public:
  /// `spins`: waits spin for a moment before they sleep; only where a core is free for it. `device` is the host but on
  /// a ghost rank, where queues of devices too have no work to run.
  HostQueue(std::string_view name, int index, bool spins, std::shared_ptr<RunningOp> rank,
            Device device = Device::cpu());

  Event submit(QueueWork work) override { return submit(std::move(work), {}); }
  /// The same for work that can go on without bytes that it reads.
  Event submit(QueueWork work, LetGo let_go);
  /// See memory/let_go.h.
  bool let_go(std::uint64_t sequence, const Storage& storage);
  void wait(const Event& event) override;
  Event record() override { return Event(this, submitted_); }
  void drain() noexcept override;
  void abort(const std::string& reason) noexcept override;
  void close() noexcept override;
  /// From now until close() `word` is the number of items that have finished, its low 32 bits, and nobody waits for it
  /// to change but a device. On the rank's thread; the word lives until close() has returned.
  void show_progress(std::atomic<std::uint32_t>& word);
  /// Somebody waits who cannot run what was left to waiters: the queue's thread does.
  void hurry();
  /// Items that still hold their storages.
  std::size_t num_in_flight() const;
  /// What happens here. From any thread.
  ThreadState state() const;
  /// Failures that are remembered: as long as an event of the queue is anywhere, and until the next submit.
  std::size_t num_failures() const;

 private:
  ~HostQueue() override;
  bool is_done(std::uint64_t sequence) const override { return done_.load(std::memory_order_acquire) >= sequence; }
  void await(std::uint64_t sequence) override;
  void rethrow(std::uint64_t sequence) override;
  void forgive() noexcept override;

  bool is_owner() const { return std::this_thread::get_id() == owner_; }
  bool may_run_next() const;
  bool is_idle();
  bool begin(const QueueWork& work, QueueItem& item);
  void run_thread();
  void run_next(std::unique_lock<std::mutex>& lock);
  void forget_failures();
  void sleep_until_done(std::unique_lock<std::mutex>& lock, std::uint64_t sequence);
  void explain_wait(std::int64_t start, std::uint64_t first, std::uint64_t last, bool is_exposed);
  void retire(std::uint64_t sequence);

  const bool spins_;
  const std::thread::id owner_;
  const std::shared_ptr<RunningOp> rank_;
  std::thread thread_;

  mutable std::mutex mutex_;
  std::condition_variable has_work_, has_finished_;
  std::deque<std::unique_ptr<QueueItem>> items_;  // not retired; front has sequence retired_ + 1
  std::uint64_t submitted_ = 0, started_ = 0, retired_ = 0;
  std::uint64_t hurried_ = 0;  // up to here the thread runs what was left to waiters
  std::atomic<std::uint64_t> done_{0};
  std::vector<std::atomic<std::uint32_t>*> words_;  // show done_
  QueueItem* running_ = nullptr;
  std::atomic<const Queue*> awaited_{nullptr};  // by what runs: its bytes come from there
  bool is_closing_ = false;
  std::vector<Event> next_after_;  // what the next item waits for: wait()
  QueueFailures failures_;
};

/// What note_skew() has kept with the item that the calling thread runs.
std::vector<Skew> skews_here();

}  // namespace sherd
