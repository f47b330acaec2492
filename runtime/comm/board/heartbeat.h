#pragma once
// The sign of life of a rank that is a process.
#include <sys/types.h>

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>

#include "runtime/comm/board/life.h"
#include "runtime/exec/running_op.h"
#include "runtime/tensor/no_copy.h"

namespace sherd::comm {

/// A thread that writes to the cell, every `interval`, that the process runs, and which kernel. It goes on while the
/// rank's own thread computes, waits or hangs, and stops when the process is stopped. Blocks all signals.
class Heartbeat : NoCopy {
 public:
  /// `running` may be null. The cell must outlive this. Throws Error if there can be no more threads.
  Heartbeat(LifeCell& cell, std::shared_ptr<const RunningOp> running, std::chrono::nanoseconds interval);
  ~Heartbeat();

 private:
  void run();
  void beat();

  LifeCell& cell_;
  const std::shared_ptr<const RunningOp> running_;
  const std::chrono::nanoseconds interval_;
  std::uint64_t seen_ = 0;  // kernels begun, as of the last beat
  const char* seen_stage_ = nullptr;
  struct Stop {
    std::mutex mutex;
    std::condition_variable bell;
    bool is_asked = false;
  };
  const pid_t process_;
  std::unique_ptr<Stop> stop_ = std::make_unique<Stop>();
  std::thread thread_;
};

}  // namespace sherd::comm
