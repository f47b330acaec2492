#pragma once
// Whether another thread has gone to sleep: how a test knows, without a sleep of its own, that it waits.
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <string>
#include <thread>

namespace sherd::testing {

/// Returns when thread `tid`, of this process or another, sleeps in the kernel. It must do nothing that sleeps before
/// what the caller waits for. Spins.
inline void await_sleep(pid_t tid) {
  for (;;) {
    std::ifstream file("/proc/" + std::to_string(tid) + "/stat");
    const std::string text{std::istreambuf_iterator<char>(file), {}};  // "TID (NAME) STATE ..."
    const std::size_t name_end = text.rfind(')');
    if (name_end + 2 < text.size() && text[name_end + 2] == 'S') return;
    std::this_thread::yield();
  }
}

/// Computes for so long; returns the time.
inline std::chrono::steady_clock::time_point stay_busy(std::chrono::nanoseconds time) {
  const auto end = std::chrono::steady_clock::now() + time;
  auto now = std::chrono::steady_clock::now();
  while (now < end) now = std::chrono::steady_clock::now();
  return now;
}

}  // namespace sherd::testing
