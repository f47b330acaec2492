#pragma once
// A thread that looks after a rank's communicators: NCCL reports some failures only to who asks, and waits for ranks
// that died or froze for ever. On a fault all communicators of the rank are stopped, because a device that waits in one
// may hold up the others.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "runtime/cuda/device/event_pool.h"
#include "runtime/cuda/nccl/queue_comm.h"

namespace sherd::cuda::nccl {

/// When all ranks have come to a call, by the host's word, as Watchdog::now(); 0: they have not.
using MeetingTime = std::shared_ptr<std::atomic<std::int64_t>>;

/// What the watchdog asks and tells, on its thread.
struct WatchedPeers {
  std::function<std::string()> failure{};                     ///< why other ranks cannot go on; "" if they can
  std::function<std::string(const std::string& why)> tell{};  ///< of a fault found here; returns what all are told
};
/// What it knows of a list beside its end: the mark before it, and when all ranks had come to it. Without the latter
/// they have when it is launched.
struct BegunList {
  cudaEvent_t started = nullptr;
  MeetingTime met{};
};

class Watchdog {
 public:
  using Duration = std::chrono::nanoseconds;
  /// Watches communicators on `device`. What is expected and not done `deadline` after the latest of its launch, the
  /// meeting of all ranks and the end of what was launched before it on its communicator is a fault. A rank whose
  /// device has begun it waits a second longer, so that the one that holds up the others has the first word.
  Watchdog(int device, Duration deadline, WatchedPeers peers = {});
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  void add(std::shared_ptr<QueueComm> comm);
  /// A mark on the stream, before a launch. It goes to expect() or forget(). On the rank's thread, as those.
  cudaEvent_t mark(cudaStream_t stream);
  void forget(cudaEvent_t mark) { events_.give_back(mark); }
  /// `stream` holds the last launch of `comm`, which `what` names.
  void expect(const std::shared_ptr<QueueComm>& comm, std::string what, cudaStream_t stream, BegunList begun = {});
  /// Stops all communicators, as a fault does.
  void stop(std::string_view reason);
  /// Why they were stopped; "" if they were not.
  std::string reason() const;
  /// Forgets the communicators, what is expected, and why they were stopped.
  void clear();
  void set_deadline(Duration deadline);
  /// Nanoseconds of a clock that only goes forward.
  static std::int64_t now() { return Clock::now().time_since_epoch() / Duration(1); }

 private:
  using Clock = std::chrono::steady_clock;
  struct Expected {
    std::string what;
    std::uint64_t number;  // of the communicator's launches
    cudaEvent_t done;
    std::int64_t since;  // as now()
    BegunList begun;
  };

  void run();
  /// "dp gather: ncclAllGather ..., launch 3, is not done after 2.0 s"; "" if nothing is wrong. The mutex is held.
  std::string fault();
  /// Whether something is expected and nothing has been stopped. The mutex is held.
  bool is_waiting() const;
  std::string overdue(const QueueComm& comm, std::deque<Expected>& expected);
  std::string lateness(const QueueComm& comm, const Expected& item, std::int64_t now) const;
  void forget_all();
  void stop_all(std::string_view reason);

  const WatchedPeers peers_;
  Duration deadline_;
  EventPool events_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<QueueComm>> comms_;
  std::map<const QueueComm*, std::deque<Expected>> expected_;
  std::string reason_;
  std::uint64_t generation_ = 0;  // of what is expected: clear() begins another
  bool ends_ = false;
  std::thread thread_;  // the last: it uses the others
};

}  // namespace sherd::cuda::nccl
