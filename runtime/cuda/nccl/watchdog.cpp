#include "runtime/cuda/nccl/watchdog.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "runtime/cuda/device/check.h"

namespace sherd::cuda::nccl {

namespace {

// Between two looks: short against the deadline, and no load where that is long.
std::chrono::nanoseconds pause_of(std::chrono::nanoseconds deadline) {
  return std::clamp<std::chrono::nanoseconds>(deadline / 20, std::chrono::milliseconds(1),
                                              std::chrono::milliseconds(50));
}

}  // namespace

Watchdog::Watchdog(int device, std::chrono::nanoseconds deadline)
    : deadline_(deadline), events_(device), thread_([this] { run(); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
  for (const auto& [comm, expected] : expected_)
    for (const Expected& item : expected) events_.give_back(item.done);
}

void Watchdog::add(std::shared_ptr<QueueComm> comm) {
  const std::lock_guard lock(mutex_);
  comms_.push_back(std::move(comm));
}

void Watchdog::expect(const std::shared_ptr<QueueComm>& comm, std::string what, cudaStream_t stream) {
  const cudaEvent_t done = events_.take();
  check(cudaEventRecord(done, stream), "recording an event");
  const std::lock_guard lock(mutex_);
  expected_[comm.get()].push_back({std::move(what), comm->launched(), done, Clock::now()});
}

std::string Watchdog::overdue(const QueueComm& comm, std::deque<Expected>& expected) {
  while (!expected.empty()) {
    const Expected& first = expected.front();
    const cudaError_t status = cudaEventQuery(first.done);
    const Clock::time_point now = Clock::now();
    if (status == cudaErrorNotReady) {
      if (now - first.since <= deadline_) return {};
      return fmt::format("{}: {}, launch {}, is not done after {:.1f} s: another rank has not come to it", comm.name(),
                         first.what, first.number, std::chrono::duration<double>(deadline_).count());
    }
    if (status != cudaSuccess)
      return fmt::format("{}: {}, launch {}: {}", comm.name(), first.what, first.number, cudaGetErrorString(status));
    events_.give_back(first.done);
    expected.pop_front();
    if (!expected.empty()) expected.front().since = std::max(expected.front().since, now);
  }
  return {};
}

std::string Watchdog::fault() {
  for (const auto& comm : comms_) {
    if (const std::string why = comm->error(); !why.empty()) return comm->name() + ": " + why;
    if (const std::string why = overdue(*comm, expected_[comm.get()]); !why.empty()) return why;
  }
  return {};
}

void Watchdog::stop_all(std::string_view reason) {
  if (!reason_.empty()) return;
  reason_ = reason;
  for (const auto& comm : comms_) comm->stop(reason);
}

void Watchdog::run() {
  events_.enter();
  std::unique_lock lock(mutex_);
  while (!ends_ && reason_.empty()) {
    if (const std::string why = fault(); !why.empty()) stop_all(why);
    else changed_.wait_for(lock, pause_of(deadline_));
  }
}

void Watchdog::stop(std::string_view reason) {
  const std::lock_guard lock(mutex_);
  stop_all(reason);
}

std::string Watchdog::reason() const {
  const std::lock_guard lock(mutex_);
  return reason_;
}

}  // namespace sherd::cuda::nccl
