#include "tools/train/stop_signals.h"

#include <signal.h>

#include <array>
#include <atomic>
#include <cstring>
#include <mutex>

#include <fmt/format.h>

namespace sherd {

namespace {

constexpr std::array kStopSignals = {SIGTERM, SIGINT};

std::atomic<int> noted_signal{0};
static_assert(std::atomic<int>::is_always_lock_free, "written by a signal handler");

// Who lives, and what each signal did before the first of them.
std::mutex mutex;
int living = 0;
std::array<struct sigaction, kStopSignals.size()> actions_before{};

void note(int signal) { noted_signal.store(signal, std::memory_order_relaxed); }

}  // namespace

StopSignals::StopSignals() {
  const std::lock_guard lock(mutex);
  if (living++ > 0) return;
  for (std::size_t i = 0; i < kStopSignals.size(); ++i) {
    struct sigaction noting{};
    noting.sa_handler = note;
    noting.sa_flags = SA_RESTART;
    if (kStopSignals[i] == SIGINT) noting.sa_flags |= static_cast<int>(SA_RESETHAND);  // the second finds the default
    ::sigaction(kStopSignals[i], nullptr, &actions_before[i]);
    if (actions_before[i].sa_handler != SIG_IGN) ::sigaction(kStopSignals[i], &noting, nullptr);
  }
}

StopSignals::~StopSignals() {
  const std::lock_guard lock(mutex);
  if (--living > 0) return;
  for (std::size_t i = 0; i < kStopSignals.size(); ++i) ::sigaction(kStopSignals[i], &actions_before[i], nullptr);
  noted_signal = 0;
}

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name ? fmt::format("SIG{}", name) : fmt::format("signal {}", signal);
}

int StopSignals::noted() noexcept { return noted_signal.load(std::memory_order_relaxed); }

}  // namespace sherd
