#pragma once
#include <sys/types.h>

#include <chrono>
#include <vector>

namespace sherd {

/// For how long process groups have been stopped (SIGSTOP, a frozen container), as one sees who looks at them every
/// now and then.
class StoppedTime {
 public:
  using Clock = std::chrono::steady_clock;

  /// `longest`: the time that matters.
  explicit StoppedTime(std::chrono::milliseconds longest);

  /// How often one should look.
  std::chrono::milliseconds interval() const { return interval_; }
  /// How long the first process of each of these groups of descendants of the caller has been stopped. Time in which
  /// the caller did not look, perhaps because it was stopped itself, counts as two intervals at most.
  std::chrono::milliseconds of(const std::vector<pid_t>& groups, Clock::time_point now = Clock::now());

 private:
  std::chrono::milliseconds interval_;
  std::vector<pid_t> groups_;
  Clock::time_point looked_at_{};
  bool were_stopped_ = false;
  Clock::duration time_{};
};

}  // namespace sherd
