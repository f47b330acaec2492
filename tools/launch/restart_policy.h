#pragma once
// After a failure: whether all ranks are started again, when, and which of them. Ranks keep the number of their first
// start, their slot, because a slot stands for what may be broken for good: a device, a share of the host.
#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace sherd {

struct RestartOptions {
  int restarts = 0;
  /// Before a restart; twice as long after each failure within kAtOnce of its start, up to a minute.
  std::chrono::milliseconds backoff{1'000};
  /// A rank that failed, and fails again at once in the next start, is left out while so many remain; 0: all are
  /// needed.
  int min_ranks = 0;
};

/// A start that fails within this time has failed at once.
inline constexpr std::chrono::seconds kAtOnce{30};

/// How a start failed.
struct StartFailure {
  std::string what;
  std::vector<int> slots;  ///< those that failed by themselves, not because of a peer
};

struct NextStart {
  std::chrono::milliseconds pause{};
  std::string text{};  ///< "with 4 ranks", and who is left out
};

/// Throws Error for numbers that do not fit `ranks`.
void check_restarts(int ranks, const RestartOptions& options);

class RestartPolicy {
 public:
  /// Pauses before starts: twice as long after each start that has failed at once, up to a minute.
  struct Backoff {
    std::chrono::milliseconds first, next = first;
    /// Before the start that follows one of such a life.
    std::chrono::milliseconds after(std::chrono::nanoseconds life);
  };

  RestartPolicy(int ranks, const RestartOptions& options);
  /// Slots of the next start, by rank.
  const std::vector<int>& slots() const { return slots_; }
  /// A start has failed after `life`. Nothing if no restart is left; else slots() are those to start.
  std::optional<NextStart> after(const StartFailure& failure, std::chrono::milliseconds life);

 private:
  std::vector<int> leave_out(const std::vector<int>& failed);

  const RestartOptions options_;
  std::vector<int> slots_;
  std::vector<int> failed_before_;  // in the last start
  int restarts_ = 0;
  Backoff backoff_;
};

}  // namespace sherd
