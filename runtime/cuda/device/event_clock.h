#pragma once
// When events of a device were reached, by the host's clock: CUDA tells how long after another event that was, and this
// keeps one whose time is known.
#include <cstdint>

#include <cuda_runtime_api.h>

#include "runtime/tensor/no_copy.h"

namespace sherd::cuda {

class EventPool;

/// One of each rank and device, on the rank's thread.
class EventClock : NoCopy {
 public:
  /// Waits for `stream`, which is new, once. `events` have times.
  EventClock(EventPool& events, cudaStream_t stream);
  ~EventClock();

  /// Nanoseconds of the monotonic clock. `event` is of the pool and was reached.
  std::int64_t time_of(cudaEvent_t event);
  /// The stream ends.
  void stop() { stream_ = nullptr; }

 private:
  std::int64_t after_known(cudaEvent_t event) const;
  void renew();

  EventPool& events_;
  cudaStream_t stream_;
  cudaEvent_t known_, next_ = nullptr;
  std::int64_t known_time_ = 0, next_begun_ = 0;
};

}  // namespace sherd::cuda
