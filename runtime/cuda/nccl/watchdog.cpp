#include "runtime/cuda/nccl/watchdog.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "runtime/cuda/device/check.h"

namespace sherd::cuda::nccl {

namespace {

// Between two looks: short against the deadline, and no load where that is long.
constexpr Watchdog::Duration kFirstWord = std::chrono::seconds(1);

std::chrono::nanoseconds pause_of(std::chrono::nanoseconds deadline) {
  return std::clamp<std::chrono::nanoseconds>(deadline / 20, std::chrono::milliseconds(1),
                                              std::chrono::milliseconds(50));
}

}  // namespace

Watchdog::Watchdog(int device, Duration deadline, WatchedPeers peers)
    : peers_(std::move(peers)), deadline_(deadline), events_(device), thread_([this] { run(); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
  forget_all();
}

void Watchdog::forget_all() {
  for (const auto& [comm, expected] : expected_)
    for (const Expected& item : expected) {
      events_.give_back(item.done);
      if (item.begun.started) events_.give_back(item.begun.started);
    }
  expected_.clear();
}

void Watchdog::clear() {
  const std::lock_guard lock(mutex_);
  ++generation_;
  forget_all();
  comms_.clear();
  reason_.clear();
}

void Watchdog::set_deadline(Duration deadline) {
  const std::lock_guard lock(mutex_);
  deadline_ = deadline;
}

cudaEvent_t Watchdog::mark(cudaStream_t stream) {
  const cudaEvent_t event = events_.take();
  check(cudaEventRecord(event, stream), "recording an event");
  return event;
}

void Watchdog::add(std::shared_ptr<QueueComm> comm) {
  const std::lock_guard lock(mutex_);
  comms_.push_back(std::move(comm));
}

void Watchdog::expect(const std::shared_ptr<QueueComm>& comm, std::string what, cudaStream_t stream, BegunList begun) {
  const cudaEvent_t done = mark(stream);
  const std::lock_guard lock(mutex_);
  expected_[comm.get()].push_back({std::move(what), comm->launched(), done, now(), std::move(begun)});
}

/// Words for an item that is not done; "" while it need not be.
std::string Watchdog::lateness(const QueueComm& comm, const Expected& item, std::int64_t now) const {
  const double seconds = std::chrono::duration<double>(deadline_).count();
  const std::string what = fmt::format("{}: {}, launch {}, is not done", comm.name(), item.what, item.number);
  const MeetingTime& met = item.begun.met;
  if (met && *met == 0) return {};  // the host says who has not come
  const Duration waited(now - std::max(item.since, met ? met->load() : 0));
  if (!met)
    return waited <= deadline_ ? std::string()
                               : fmt::format("{} after {:.1f} s: another rank has not come to it", what, seconds);
  const bool has_started = !item.begun.started || cudaEventQuery(item.begun.started) == cudaSuccess;
  if (waited <= deadline_ + (has_started ? kFirstWord : Duration(0))) return {};
  return fmt::format("{} {:.1f} s after all ranks came to it: {}", what, std::chrono::duration<double>(waited).count(),
                     has_started
                         ? "the device of this rank has begun it, that of another has not, or NCCL hangs"
                         : "the device of this rank has not come to it, as what was queued before does not end");
}

std::string Watchdog::overdue(const QueueComm& comm, std::deque<Expected>& expected) {
  while (!expected.empty()) {
    const Expected& first = expected.front();
    const cudaError_t status = cudaEventQuery(first.done);
    const std::int64_t time = now();
    if (status == cudaErrorNotReady) return lateness(comm, first, time);
    if (status != cudaSuccess)
      return fmt::format("{}: {}, launch {}: {}", comm.name(), first.what, first.number, cudaGetErrorString(status));
    events_.give_back(first.done);
    if (first.begun.started) events_.give_back(first.begun.started);
    expected.pop_front();
    if (!expected.empty()) expected.front().since = std::max(expected.front().since, time);
  }
  return {};
}

std::string Watchdog::fault() {
  for (const auto& comm : comms_) {
    std::deque<Expected>& expected = expected_[comm.get()];
    const std::string error = comm->error();
    // Ranks that have called different things are named by the host, which compares them now.
    const bool is_compared = expected.empty() || !expected.front().begun.met || *expected.front().begun.met != 0;
    if (!error.empty() && is_compared) return comm->name() + ": " + error;
    if (const std::string why = error.empty() ? overdue(*comm, expected) : ""; !why.empty()) return why;
  }
  return {};
}

bool Watchdog::is_waiting() const {
  return reason_.empty() && std::ranges::any_of(expected_, [](const auto& of) { return !of.second.empty(); });
}

void Watchdog::stop_all(std::string_view reason) {
  if (!reason_.empty()) return;
  reason_ = reason;
  for (const auto& comm : comms_) comm->stop(reason);
}

void Watchdog::run() {
  events_.enter();
  std::unique_lock lock(mutex_);
  while (!ends_) {
    std::string why = reason_.empty() ? fault() : "";
    if (why.empty() && is_waiting() && peers_.failure) {
      const std::uint64_t looked_at = generation_;
      lock.unlock();  // the host may ask a store, for which launches do not wait
      why = peers_.failure();
      lock.lock();
      if (generation_ != looked_at || !is_waiting()) why.clear();
    }
    if (!why.empty()) stop_all(peers_.tell ? peers_.tell(why) : why);
    if (!ends_) changed_.wait_for(lock, pause_of(deadline_));
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
