#pragma once
// Long waits say so: who is missing, in which call and since when, long before a deadline ends them.
#include <algorithm>
#include <chrono>
#include <functional>
#include <string>

namespace sherd {

struct WaitNotice {
  /// Half a second less than 5 s: within 5 s everybody knows who is missing.
  std::chrono::nanoseconds after = std::chrono::milliseconds(4500);
  /// Called on the thread that waits, which may be any; one of the ranks that wait for the same calls it. Empty: waits
  /// are silent.
  std::function<void(const std::string& text)> say{};
};

/// When a wait speaks: after the time of its notice, then each time when it is twice as old, at least every minute.
class NoticeClock {
 public:
  using Clock = std::chrono::steady_clock;

  NoticeClock() = default;
  NoticeClock(Clock::time_point start, std::chrono::nanoseconds after) : next_(start + after), step_(after) {}
  Clock::time_point next() const { return next_; }
  /// True once for each of these moments.
  bool is_due(Clock::time_point now) {
    if (now < next_) return false;
    next_ = now + step_;
    step_ = std::min<std::chrono::nanoseconds>(2 * step_, std::chrono::minutes(1));
    return true;
  }

 private:
  Clock::time_point next_ = Clock::time_point::max();
  std::chrono::nanoseconds step_{};
};

}  // namespace sherd
