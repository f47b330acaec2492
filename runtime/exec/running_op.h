#pragma once
// What a rank's thread does, for other threads of the process to see: whoever waits for this rank wants to know whether
// it computes. Two relaxed stores and a count per kernel, no clock: who looks twice knows how long a kernel has run.
#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>

#include "runtime/exec/context.h"

namespace sherd {

/// Outlives the rank's context where another thread keeps it. Written by the rank's thread.
struct RunningOp {
  std::atomic<const std::string_view*> kernel{nullptr};  ///< name of the row whose kernel runs; null: between kernels
  std::atomic<std::uint64_t> begun{0};                   ///< kernels begun so far
  std::atomic<bool> waits_for_queue{false};              ///< the rank's thread waits for one of its queues
  std::atomic<const char*> stage{nullptr};  ///< a literal: what the program does beside training steps; null: nothing
};

/// The slot of a rank's context that keeps it.
struct RunningOpSlot {
  std::shared_ptr<RunningOp> running = std::make_shared<RunningOp>();
};

/// Of the rank whose context is current.
inline const std::shared_ptr<RunningOp>& running_op() { return RankContext::current().state<RunningOpSlot>().running; }

/// A kernel runs from construction to destruction. `name` lives as long as the program, as those of rows do.
class KernelMark {
 public:
  KernelMark(RunningOp& running, const std::string_view& name) : running_(running) {
    // No read-modify-write: there is one writer.
    running.begun.store(running.begun.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    running.kernel.store(&name, std::memory_order_release);
  }
  ~KernelMark() { running_.kernel.store(nullptr, std::memory_order_relaxed); }
  KernelMark(const KernelMark&) = delete;
  KernelMark& operator=(const KernelMark&) = delete;

 private:
  RunningOp& running_;
};

/// The rank's thread waits for one of its queues, from construction to destruction.
class QueueWaitMark {
 public:
  QueueWaitMark()
      : running_(*running_op()), outer_(running_.waits_for_queue.exchange(true, std::memory_order_relaxed)) {}
  ~QueueWaitMark() { running_.waits_for_queue.store(outer_, std::memory_order_relaxed); }
  QueueWaitMark(const QueueWaitMark&) = delete;
  QueueWaitMark& operator=(const QueueWaitMark&) = delete;

 private:
  RunningOp& running_;
  const bool outer_;
};

/// The rank is in a stage, "start-up" or "a save", from construction to destruction.
class StageMark {
 public:
  explicit StageMark(const char* literal) : running_(running_op()), outer_(running_->stage.exchange(literal)) {}
  ~StageMark() { running_->stage = outer_; }
  StageMark(const StageMark&) = delete;
  StageMark& operator=(const StageMark&) = delete;

 private:
  const std::shared_ptr<RunningOp> running_;
  const char* const outer_;
};

}  // namespace sherd
