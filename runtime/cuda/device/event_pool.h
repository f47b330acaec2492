#pragma once
// Events of one rank on one device, used again when the marks that had them are gone. A mark is asked for at every
// piece of work that goes to a queue of the device, and outlives its stream and the context.
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <cuda_runtime_api.h>

#include "runtime/cuda/device/event_clock.h"
#include "runtime/tensor/no_copy.h"

namespace sherd::cuda {

/// Made on the rank's thread, used from any.
class EventPool : NoCopy {
 public:
  explicit EventPool(int device) : device_(device), owner_(std::this_thread::get_id()) {}
  /// Makes a pool whose events have times. `stream` is new: it is waited for, and used until stop_clock().
  EventPool(int device, cudaStream_t stream);
  ~EventPool();

  /// A thread that waits for it sleeps, because the ranks need the cores.
  cudaEvent_t take();
  void give_back(cudaEvent_t event);
  /// Before a thread asks CUDA for anything: that of a host queue would otherwise make a context on the first device,
  /// which costs memory there and belongs to nobody. The rank's thread has one, whichever device is current.
  void enter() const;

  /// When an event of a pool with times was reached: EventClock::time_of(). On the rank's thread.
  std::int64_t time_of(cudaEvent_t event) { return clock_->time_of(event); }
  void stop_clock() { clock_->stop(); }

 private:
  const int device_;
  const bool has_times_ = false;
  const std::thread::id owner_;
  std::mutex mutex_;
  std::vector<cudaEvent_t> free_;
  std::unique_ptr<EventClock> clock_;
};

}  // namespace sherd::cuda
