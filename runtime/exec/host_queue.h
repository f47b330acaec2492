#pragma once
// A queue of the host: one thread and a list of closures. If it is idle when somebody waits for an item, the rank's
// thread runs the item itself.
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "runtime/exec/context.h"
#include "runtime/exec/queue.h"

namespace sherd {

/// One item, from submit until the submitting thread has let go of it. Times are nanoseconds of the monotonic
/// clock, as in traces.
struct QueueItem {
  std::uint64_t sequence = 0;
  std::string_view queue, name;
  std::string subject, issued;  ///< issued: module, rank and step at submit, for messages
  const std::string* module_path = nullptr;
  StepPhase phase = StepPhase::forward;
  std::int64_t bytes = 0;
  std::function<void()> run;
  std::function<void(std::string_view)> abort;
  std::vector<Ref<Storage>> held;
  struct Before {
    Event event;
    bool wrote;  // what this item uses: its errors are this item's
  };
  std::vector<Before> after;  // work of other queues
  std::vector<Skew> skews;    // of its collectives and of what it waited for
  std::int64_t submitted = 0, started = 0, ended = 0;
};
/// "gather unshard blocks.3".
std::string describe(const QueueItem& item);

/// On a ghost rank nothing runs and no thread is started: items are lent storages and let go of them, as ever.
///
/// A failure (an exception in `run`) fails the queue: what was submitted until somebody waits is skipped, the bytes it
/// was to write raise the same error at every touch, and what comes after runs again.
class HostQueue final : public Queue {
 public:
  /// `spins`: waits spin for a moment before they sleep; only where a core is free for it.
  HostQueue(std::string_view name, int index, bool spins);

  Event submit(QueueWork work) override;
  void wait(const Event& event) override;
  Event record() override { return Event(this, submitted_); }
  void drain() noexcept override;
  void abort(const std::string& reason) noexcept override;
  void close() noexcept override;
  /// Items that still hold their storages.
  std::size_t num_in_flight() const;

 private:
  struct Failure {
    std::uint64_t first, last;
    std::exception_ptr error;
  };
  ~HostQueue() override;
  bool is_done(std::uint64_t sequence) const override { return done_.load(std::memory_order_acquire) >= sequence; }
  void await(std::uint64_t sequence) override;
  void rethrow(std::uint64_t sequence) override;
  void forgive() noexcept override;

  bool is_owner() const { return std::this_thread::get_id() == owner_; }
  std::unique_ptr<QueueItem> make_item(QueueWork& work);
  void run_thread();
  void run_next(std::unique_lock<std::mutex>& lock);
  bool is_failed(std::uint64_t sequence) const;
  void sleep_until_done(std::unique_lock<std::mutex>& lock, std::uint64_t sequence);
  void explain_wait(std::int64_t start, std::uint64_t first, std::uint64_t last);
  void retire(std::uint64_t sequence);
  void record(Trace& trace, const QueueItem& item);

  const bool spins_;
  const std::thread::id owner_;
  std::thread thread_;

  mutable std::mutex mutex_;
  std::condition_variable has_work_, has_finished_;
  std::deque<std::unique_ptr<QueueItem>> items_;  // not retired; front has sequence retired_ + 1
  std::uint64_t submitted_ = 0, started_ = 0, retired_ = 0;
  std::atomic<std::uint64_t> done_{0};
  QueueItem* running_ = nullptr;
  bool is_closing_ = false;
  std::vector<Event> next_after_;  // what the next item waits for: wait()
  // Sequences that failed or were skipped; the last entry is open (`last` = all) until somebody has waited.
  std::vector<Failure> failures_;
};

}  // namespace sherd
