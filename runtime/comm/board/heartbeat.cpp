#include "runtime/comm/board/heartbeat.h"

#include <signal.h>
#include <unistd.h>

#include <string_view>
#include <system_error>

#include "runtime/tensor/error.h"
#include "runtime/tensor/no_copy.h"

namespace sherd::comm {

namespace {

std::int64_t nanoseconds_now() {
  return std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
}

/// A new thread inherits the mask: signals are for the threads of the program.
class AllSignalsBlocked : NoCopy {
 public:
  AllSignalsBlocked() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~AllSignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_{};
};

}  // namespace

Heartbeat::Heartbeat(LifeCell& cell, std::shared_ptr<const RunningOp> running, std::chrono::nanoseconds interval)
    : cell_(cell), running_(std::move(running)), interval_(interval), process_(::getpid()) {
  cell_.interval.store(interval.count(), std::memory_order_relaxed);
  beat();
  const AllSignalsBlocked blocked;
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    fail(
        "cannot start the thread that gives this rank's signs of life: {}; raise the limits on threads and memory "
        "(ulimit -u, ulimit -v)",
        error.what());
  }
}

// A forked child has no such thread, and what the thread held or waited for stays so for ever.
Heartbeat::~Heartbeat() {
  if (::getpid() != process_) {
    thread_.detach();
    static_cast<void>(stop_.release());
    return;
  }
  {
    const std::lock_guard lock(stop_->mutex);
    stop_->is_asked = true;
  }
  stop_->bell.notify_one();
  thread_.join();
}

void Heartbeat::run() {
  std::unique_lock lock(stop_->mutex);
  while (!stop_->bell.wait_for(lock, interval_, [this] { return stop_->is_asked; })) beat();
}

void Heartbeat::beat() {
  const std::int64_t now = nanoseconds_now(), last = cell_.beat.load(std::memory_order_relaxed);
  const std::int64_t gap = last == 0 ? 0 : now - last, interval = interval_.count();
  // On a busy machine it may be late by a beat or two.
  if (gap > 4 * interval) {
    cell_.lost.fetch_add(gap - interval, std::memory_order_relaxed);
    cell_.pause_end.store(now, std::memory_order_relaxed);
  }
  if (running_) {
    // In this order: the name may be of a later kernel than the number, which the next beat puts right.
    const std::uint64_t begun = running_->begun.load(std::memory_order_acquire);
    const std::string_view* const kernel = running_->kernel.load(std::memory_order_acquire);
    if (!kernel) {
      cell_.kernel_since.store(0, std::memory_order_relaxed);
    } else if (begun != seen_ || cell_.kernel_since.load(std::memory_order_relaxed) == 0) {
      cell_.kernel.store(*kernel);
      cell_.kernel_since.store(now, std::memory_order_relaxed);
    }
    seen_ = begun;
    cell_.waits_for_queue.store(running_->awaited_queue.load(std::memory_order_relaxed) != nullptr,
                                std::memory_order_relaxed);
    const char* const stage = running_->stage.load(std::memory_order_relaxed);
    if (stage != seen_stage_) cell_.stage.store(stage ? stage : "");
    seen_stage_ = stage;
  }
  cell_.beat.store(now, std::memory_order_release);
}

}  // namespace sherd::comm
