#include "runtime/cuda/device/event_pool.h"

#include "runtime/cuda/device/check.h"

namespace sherd::cuda {

EventPool::EventPool(int device, cudaStream_t stream)
    : device_(device),
      has_times_(true),
      owner_(std::this_thread::get_id()),
      clock_(std::make_unique<EventClock>(*this, stream)) {}

EventPool::~EventPool() {
  clock_.reset();
  enter();
  for (const cudaEvent_t event : free_) (void)cudaEventDestroy(event);
}

cudaEvent_t EventPool::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      const cudaEvent_t event = free_.back();
      free_.pop_back();
      return event;
    }
  }
  cudaEvent_t event = nullptr;
  const unsigned flags = cudaEventBlockingSync | (has_times_ ? 0u : cudaEventDisableTiming);
  check(cudaEventCreateWithFlags(&event, flags), "creating an event");
  return event;
}

void EventPool::give_back(cudaEvent_t event) {
  const std::lock_guard lock(mutex_);
  free_.push_back(event);
}

// A device that cannot be chosen is lost, which the next call says.
void EventPool::enter() const {
  if (std::this_thread::get_id() != owner_) (void)cudaSetDevice(device_);
}

}  // namespace sherd::cuda
