#pragma once
// A CPU stream: work of one rank that runs beside its thread, in the order it was submitted. It exists to hide
// communication behind compute; compute itself stays on the rank's thread.
//
//   rank's thread   submit(a) ... compute ... submit(b) ... compute ... touches a's bytes: waits for a
//   stream's thread           a a a a a a a a a a             b b b b
//
// Work borrows memory: the storages it uses are *lent* to the stream, and whoever asks such a storage for its address
// waits for the work (Storage::data). Nobody else ever has to wait.
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "runtime/exec/context.h"
#include "runtime/memory/event.h"
#include "runtime/memory/storage.h"

namespace sherd {

/// Bytes that work uses. What it reads stays alive until the submitting thread has waited for the work; whoever drops
/// what it writes waits.
struct Loan {
  Ref<Storage> storage;
  bool writes = false;
};

struct StreamWork {
  static constexpr std::size_t kUnlimited = std::numeric_limits<std::size_t>::max();
  std::string_view name;        ///< a literal or the name of an op: "unshard"
  std::string_view subject{};   ///< what it acts on: "blocks.3"; copied
  std::int64_t bytes = 0;       ///< moved, for traces
  std::function<void()> run;    ///< on any thread; uses addresses taken before, no tensors, allocator or rank context
  std::span<const Loan> loans;  ///< all bytes that `run` touches
  /// Makes a `run` that waits for other ranks raise; for a rank that ends by an exception.
  std::function<void(std::string_view reason)> abort{};
  /// First waits until fewer than this many items hold their storages.
  std::size_t max_in_flight = kUnlimited;
};

/// A stretch of time, in nanoseconds of the monotonic clock, in which a collective stood still on this rank because
/// another rank had not come to it yet.
struct Skew {
  std::int64_t from = 0, until = 0;
};

/// Told by a process group at the end of a call: kept with the item of a stream that the calling thread runs, if it
/// does, so that whoever waits for the item learns how much of the wait was for a rank that came late.
void note_skew(Skew skew);

/// Seconds of RankContext::waited_seconds that passed in such stretches. Of the calling thread.
double waited_skew_seconds();

/// One item, from submit until the submitting thread has let go of it. Times are nanoseconds of the monotonic
/// clock, as in traces.
struct StreamItem {
  std::uint64_t sequence = 0;
  std::string_view stream, name;
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
  std::vector<Before> after;  // work of other streams on the same bytes
  std::vector<Skew> skews;    // of its collectives and of what it waited for
  std::int64_t submitted = 0, started = 0, ended = 0;
};
/// "all_gather unshard blocks.3".
std::string describe(const StreamItem& item);

/// One thread and one queue; both belong to the rank context that made it. Only that context's thread submits. A
/// failure (an exception in `run`) fails the stream: what was submitted until somebody waits is skipped, its bytes
/// raise the same error at every touch, and what comes after runs again.
class Stream final : public RefCounted {
 public:
  /// `spins`: waits spin for a moment before they sleep; only where a core is free for it.
  Stream(StreamKind kind, bool spins);
  static void destroy(Stream* stream);
  StreamKind kind() const { return kind_; }

  /// Queues work and lends it the storages; waits only for max_in_flight. If another stream uses one of the storages,
  /// the work starts after that. Throws what failed there, or Error if an active hazard check finds a missing edge.
  Event submit(StreamWork work);
  /// Waits for everything submitted. Drops errors.
  void drain() noexcept;
  /// drain(), or with a reason: skips what has not started and aborts what runs. Then ends the thread. Nothing may be
  /// submitted afterwards.
  void close(const std::string* abort_reason) noexcept;
  /// Items that still hold their storages.
  std::size_t num_in_flight() const;

 private:
  friend class Event;
  struct Failure {
    std::uint64_t first, last;
    std::exception_ptr error;
  };
  ~Stream();
  bool is_done(std::uint64_t sequence) const { return done_.load(std::memory_order_acquire) >= sequence; }
  bool is_owner() const { return std::this_thread::get_id() == owner_; }
  void run_thread();
  void run_next(std::unique_lock<std::mutex>& lock);
  bool is_failed(std::uint64_t sequence) const;
  void await(std::uint64_t sequence);
  void sleep_until_done(std::unique_lock<std::mutex>& lock, std::uint64_t sequence);
  void explain_wait(std::int64_t start, std::uint64_t first, std::uint64_t last);
  void retire(std::uint64_t sequence);
  void record(Trace& trace, const StreamItem& item) const;
  void observe_failure();
  void rethrow(std::uint64_t sequence);

  const StreamKind kind_;
  const bool spins_;
  const std::thread::id owner_;
  std::thread thread_;

  mutable std::mutex mutex_;
  std::condition_variable has_work_, has_finished_;
  std::deque<std::unique_ptr<StreamItem>> items_;  // not retired; front has sequence retired_ + 1
  std::uint64_t submitted_ = 0, started_ = 0, retired_ = 0;
  std::atomic<std::uint64_t> done_{0};
  StreamItem* running_ = nullptr;
  bool is_closing_ = false;
  // Sequences that failed or were skipped; the last entry is open (`last` = all) until somebody has waited.
  std::vector<Failure> failures_;
};

}  // namespace sherd
