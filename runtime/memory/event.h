#pragma once
// A point in the work of a queue. Storages carry them while queues use their bytes (Storage::lend), so users never see
// them. exec/queue.cpp implements what is asked of one.
#include <cstdint>
#include <utility>

#include "runtime/tensor/device.h"

namespace sherd {

class Queue;

/// Reached once the queue has finished everything submitted up to it. Copies cheaply; outlives the queue's rank.
class Event {
 public:
  Event() = default;  ///< of no queue: reached
  Event(Queue* queue, std::uint64_t sequence);
  Event(const Event& other) : Event(other.queue_, other.sequence_) {}
  Event(Event&& other) noexcept
      : queue_(std::exchange(other.queue_, nullptr)), sequence_(std::exchange(other.sequence_, 0)) {}
  Event& operator=(Event other) noexcept {
    std::swap(queue_, other.queue_);
    std::swap(sequence_, other.sequence_);
    return *this;
  }
  ~Event() {
    if (queue_) drop();
  }

  Queue* queue() const { return queue_; }
  std::uint64_t sequence() const { return sequence_; }
  /// Names a piece of work in traces, where arrows lead from it to its consumer. 0: of no queue.
  std::uint64_t flow() const;
  bool is_reached() const;
  /// Blocks until it is reached. On the thread that submits to a host queue: runs work inline that the queue has not
  /// started, and lets go of what finished work held. Rethrows what failed at or before it.
  void wait() const;
  /// As wait(), for the first use of what was written: traces lead an arrow here.
  void consume() const;
  /// As wait(), but drops errors: nobody will look at the result.
  void settle() const noexcept;
  /// Blocks until it is reached, whatever became of the work: its errors stay for those who wait for its results.
  void outlast() const noexcept;
  /// The same three for who touches bytes of `device`. That is the device's compute, if it is not the host: it waits
  /// there, and the host goes on. Errors of what it waits for are thrown where the host next waits for the device.
  void consume(Device device) const;
  void settle(Device device) const noexcept;
  void outlast(Device device) const noexcept;
  /// Throws what failed at or before it, if it is of a host queue and reached. Does not block.
  void rethrow_if_reached() const;

 private:
  void drop();
  Queue* queue_ = nullptr;  // counted
  std::uint64_t sequence_ = 0;
};

}  // namespace sherd
