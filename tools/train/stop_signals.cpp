#include "tools/train/stop_signals.h"
#include "runtime/tensor/indices.h"

#include <signal.h>

#include <array>
#include <atomic>
#include <cstring>
#include <mutex>

#include <fmt/format.h>

namespace sherd::train {

namespace {

constexpr std::array kSignals = {SIGTERM, SIGINT, SIGUSR1};

std::atomic<int> noted_signal{0};
std::atomic<bool> noted_save{false};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free,
              "written by a signal handler");

// Number of living StopSignals, and what each signal did before the first of them.
std::mutex mutex;
int living = 0;
std::array<struct sigaction, kSignals.size()> actions_before{};
struct sigaction save_action_before{};

void note(int signal) {
  if (signal == SIGUSR1) noted_save.store(true, std::memory_order_relaxed);
  else noted_signal.store(signal, std::memory_order_relaxed);
}

struct sigaction noting_action() {
  struct sigaction noting{};
  noting.sa_handler = note;
  noting.sa_flags = SA_RESTART;
  return noting;
}

}  // namespace

void note_save_signals() {
  const struct sigaction noting = noting_action();
  ::sigaction(SIGUSR1, nullptr, &save_action_before);
  if (save_action_before.sa_handler != SIG_IGN) ::sigaction(SIGUSR1, &noting, nullptr);
}

void forget_save_signals() {
  ::sigaction(SIGUSR1, &save_action_before, nullptr);
  noted_save = false;
}

StopSignals::StopSignals() {
  const std::lock_guard lock(mutex);
  if (living++ > 0) return;
  for (const std::size_t i : indices(kSignals)) {
    struct sigaction noting = noting_action();
    if (kSignals[i] == SIGINT) noting.sa_flags |= static_cast<int>(SA_RESETHAND);  // the second finds the default
    ::sigaction(kSignals[i], nullptr, &actions_before[i]);
    if (actions_before[i].sa_handler != SIG_IGN) ::sigaction(kSignals[i], &noting, nullptr);
  }
}

StopSignals::~StopSignals() {
  const std::lock_guard lock(mutex);
  if (--living > 0) return;
  for (const std::size_t i : indices(kSignals)) ::sigaction(kSignals[i], &actions_before[i], nullptr);
  noted_signal = 0;
  noted_save = false;
}

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name ? fmt::format("SIG{}", name) : fmt::format("signal {}", signal);
}

int StopSignals::noted() noexcept { return noted_signal.load(std::memory_order_relaxed); }

bool StopSignals::take_save() noexcept { return noted_save.exchange(false, std::memory_order_relaxed); }

}  // namespace sherd::train
