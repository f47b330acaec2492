// A distance is a float of milliseconds: over a second it is right to 60 ns, over an hour to a quarter of a
// millisecond. So the known event is a new one every second. The clocks of host and device drift apart: its time is
// moved towards the moments between which the host recorded it and found it reached, by so little that no distance is
// wrong.
#include "runtime/cuda/device/event_clock.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/cuda/device/check.h"
#include "runtime/cuda/device/event_pool.h"
#include "runtime/exec/trace.h"

namespace sherd::cuda {

namespace {
constexpr std::int64_t kRenewAfter = 1'000'000'000, kMostMoved = 100'000;  // a hundred millionths: clocks drift less
}

EventClock::EventClock(EventPool& events, cudaStream_t stream)
    : events_(events), stream_(stream), known_(events_.take()) {
  const std::int64_t before = Trace::now();
  check(cudaEventRecord(known_, stream_), "recording an event");
  check(cudaEventSynchronize(known_), "waiting for a new stream");
  known_time_ = before + (Trace::now() - before) / 2;
}

EventClock::~EventClock() {
  events_.give_back(known_);
  if (next_) events_.give_back(next_);
}

std::int64_t EventClock::after_known(cudaEvent_t event) const {
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, known_, event), "asking for the time of an event");
  return std::llround(double{milliseconds} * 1e6);
}

std::int64_t EventClock::time_of(cudaEvent_t event) {
  const std::int64_t after = after_known(event), time = known_time_ + after;
  if (after > kRenewAfter) renew();
  return time;
}

void EventClock::renew() {
  if (!stream_) return;
  if (!next_) {
    next_ = events_.take();
    next_begun_ = Trace::now();
    check(cudaEventRecord(next_, stream_), "recording an event");
  } else if (cudaEventQuery(next_) == cudaSuccess) {
    known_time_ += after_known(next_);
    const std::int64_t apart = std::clamp(known_time_, next_begun_, Trace::now()) - known_time_;
    known_time_ += std::clamp(apart, -kMostMoved, kMostMoved);
    events_.give_back(std::exchange(known_, std::exchange(next_, nullptr)));
  }
  (void)cudaGetLastError();  // that it is not reached is no error
}

}  // namespace sherd::cuda
