#pragma once
// What a rank's thread does, for other threads of the process to see: whoever waits for this rank wants to know whether
// it computes. Two relaxed stores and a count per kernel, no clock: who looks twice knows how long a kernel has run.
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>
#include <vector>

#include "runtime/exec/context.h"
#include "runtime/tensor/no_copy.h"

namespace sherd {

class HostQueue;

/// What one of a rank's threads does between its calls to other ranks: the rank's own, or that of a queue.
struct ThreadState {
  enum class Kind : std::uint8_t {
    busy,   ///< it computes, or copies, or nothing is known
    idle,   ///< of a queue: nothing runs and nothing will, before the rank's thread submits or waits
    waits,  ///< for `queue`
  };
  Kind kind = Kind::busy;
  std::uint64_t number = 0;      ///< grows with all that the thread begins: equal twice, it has done nothing in between
  const Queue* queue = nullptr;  ///< lives as long as the rank's queues do: to compare, or under their lock
};

/// Outlives the rank's context where another thread keeps it. Written by the rank's thread.
struct RunningOp {
  std::atomic<const std::string_view*> kernel{nullptr};  ///< name of the row whose kernel runs; null: between kernels
  std::atomic<std::uint64_t> begun{0};                   ///< kernels begun so far
  std::atomic<const Queue*> awaited_queue{nullptr};      ///< of the rank, for which its thread waits; null: none
  std::atomic<std::uint64_t> queue_waits{0};             ///< such waits begun so far
  std::atomic<const char*> stage{nullptr};  ///< a literal: what the program does beside training steps; null: nothing

  /// Guards the list, and keeps its queues alive: taken before their own locks.
  std::mutex queues_mutex;
  std::vector<const HostQueue*> queues;  ///< those of the rank that have a thread

  ThreadState thread_state() const {
    const std::uint64_t number = queue_waits.load(std::memory_order_acquire);
    const Queue* const queue = awaited_queue.load(std::memory_order_acquire);
    return {queue ? ThreadState::Kind::waits : ThreadState::Kind::busy, number, queue};
  }
};

/// The slot of a rank's context that keeps it.
struct RunningOpSlot {
  std::shared_ptr<RunningOp> running = std::make_shared<RunningOp>();
};

/// The RunningOp of the rank whose context is current.
inline const std::shared_ptr<RunningOp>& running_op() { return RankContext::current().state<RunningOpSlot>().running; }

/// The one of the rank that the calling thread belongs to, as its own thread or as that of one of its queues; null
/// elsewhere.
RunningOp* running_op_here();

/// A kernel runs from construction to destruction. `name` lives as long as the program, as those of rows do.
class KernelMark : NoCopy {
 public:
  KernelMark(RunningOp& running, const std::string_view& name) : running_(running) {
    // No read-modify-write: there is one writer.
    running.begun.store(running.begun.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    running.kernel.store(&name, std::memory_order_release);
  }
  ~KernelMark() { running_.kernel.store(nullptr, std::memory_order_relaxed); }

 private:
  RunningOp& running_;
};

/// The rank's thread waits for one of its queues, from construction to destruction.
class QueueWaitMark : NoCopy {
 public:
  explicit QueueWaitMark(const Queue& queue)
      : running_(*running_op()), outer_(running_.awaited_queue.load(std::memory_order_relaxed)) {
    change_to(&queue);
  }
  ~QueueWaitMark() { change_to(outer_); }

 private:
  // One writer. Who reads the same number twice has read no other queue in between.
  void change_to(const Queue* queue) {
    running_.queue_waits.store(running_.queue_waits.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    running_.awaited_queue.store(queue, std::memory_order_release);
  }

  RunningOp& running_;
  const Queue* const outer_;
};

/// The rank is in a stage, "start-up" or "a save", from construction to destruction.
class StageMark : NoCopy {
 public:
  explicit StageMark(const char* literal) : running_(running_op()), outer_(running_->stage.exchange(literal)) {}
  ~StageMark() { running_->stage = outer_; }

 private:
  const std::shared_ptr<RunningOp> running_;
  const char* const outer_;
};

}  // namespace sherd
