#pragma once
// A thread that looks after a rank's communicators: NCCL reports some failures only to who asks, and waits for ranks
// that died or froze for ever. On a fault all communicators of the rank are stopped, because a device that waits in one
// may hold up the others.
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "runtime/cuda/device/event_pool.h"
#include "runtime/cuda/nccl/queue_comm.h"

namespace sherd::cuda::nccl {

class Watchdog {
 public:
  /// Watches communicators on `device`. What is expected and not done `deadline` after the later of its launch and the
  /// end of what was launched before it on its communicator is a fault.
  Watchdog(int device, std::chrono::nanoseconds deadline);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  void add(std::shared_ptr<QueueComm> comm);
  /// `stream` holds the last launch of `comm`, which `what` names. On the rank's thread.
  void expect(const std::shared_ptr<QueueComm>& comm, std::string what, cudaStream_t stream);
  /// Stops all communicators, as a fault does.
  void stop(std::string_view reason);
  /// Why they were stopped; "" if they were not.
  std::string reason() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Expected {
    std::string what;
    std::uint64_t number;  // of the communicator's launches
    cudaEvent_t done;
    Clock::time_point since;
  };

  void run();
  /// "dp gather: ncclAllGather ..., launch 3, is not done after 2.0 s"; "" if nothing is wrong. The mutex is held.
  std::string fault();
  std::string overdue(const QueueComm& comm, std::deque<Expected>& expected);
  void stop_all(std::string_view reason);

  const std::chrono::nanoseconds deadline_;
  EventPool events_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<QueueComm>> comms_;
  std::map<const QueueComm*, std::deque<Expected>> expected_;
  std::string reason_;
  bool ends_ = false;
  std::thread thread_;  // the last: it uses the others
};

}  // namespace sherd::cuda::nccl
