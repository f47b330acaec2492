#pragma once
// Where the time of a run goes: how even its steps are, what each unit's communication takes and how much of it is
// waited for, and which ranks the others wait for.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/comm/board/exposed.h"
#include "runtime/comm/group/process_group.h"
#include "runtime/exec/work_times.h"
#include "runtime/op/attrs/attr_list.h"
#include "runtime/os/host_counts.h"

namespace sherd::train {

/// Seconds of `count` steps; a run has those of its last kRecentSteps.
struct StepJitter {
  std::int64_t count = 0;
  double p50 = 0, p95 = 0, max = 0;
  double mad = 0;  ///< the median of the distances from p50
};
/// So that a run of months keeps no more of its steps than one of an hour.
inline constexpr std::size_t kRecentSteps = 100'000;
/// Quantiles are values that have occurred: the smallest with at least that share of the steps at or below it.
StepJitter jitter_of(std::span<const double> step_seconds);

/// Seconds per step of one unit on this rank. A gather or reduction that hides behind compute is in `seconds` alone.
struct UnitTime {
  struct Part {
    double calls = 0, seconds = 0;
    double exposed_transfer = 0;  ///< waited for the transfer itself
    double exposed_skew = 0;      ///< waited for a rank that came late
  };
  std::string unit{};
  Part gather{}, reduce{};  ///< reduce: over shards and over replicas
};

/// When one rank comes to collectives.
struct RankLateness {
  int rank = 0;
  std::string host{};
  std::int64_t calls = 0;
  double median_seconds = 0;  ///< after the first rank to come
  static constexpr AttrField fields[] = {attr<&RankLateness::rank>("rank"), attr<&RankLateness::host>("host"),
                                         attr<&RankLateness::calls>("calls"),
                                         attr<&RankLateness::median_seconds>("median_seconds")};
};

/// What a host has given one rank.
struct RankHost {
  std::string host{};
  std::int64_t process = 0;  ///< ranks that are threads of one share what it has
  double cpu = 0, minor_faults = 0, major_faults = 0, involuntary_switches = 0, throttled = 0, swap_in = 0;
  double cpus = 1, online = 1, threads = 1;  ///< CPUs that it may use, that the host has, and its threads
  static constexpr AttrField fields[] = {attr<&RankHost::host>("host"),
                                         attr<&RankHost::process>("process"),
                                         attr<&RankHost::cpu>("cpu"),
                                         attr<&RankHost::minor_faults>("minor_faults"),
                                         attr<&RankHost::major_faults>("major_faults"),
                                         attr<&RankHost::involuntary_switches>("involuntary_switches"),
                                         attr<&RankHost::throttled>("throttled"),
                                         attr<&RankHost::swap_in>("swap_in"),
                                         attr<&RankHost::cpus>("cpus"),
                                         attr<&RankHost::online>("online"),
                                         attr<&RankHost::threads>("threads")};
};

struct RunTimes {
  StepJitter steps{};
  std::vector<UnitTime> units{};      ///< of this rank, most exposed first
  std::vector<RankLateness> ranks{};  ///< of all ranks, by rank; empty on one
  std::vector<int> stragglers{};      ///< those that the others wait for, the latest first
  std::vector<RankHost> hosts{};      ///< HostCounts per step of all ranks, by rank; empty before there is a step
};

/// Ranks whose median lateness is at least 2 % of a step and three times that of the median rank.
std::vector<int> stragglers_of(std::span<const RankLateness> ranks, double step_seconds);

/// Units in the work of a rank's queues, with what `steps` steps took.
std::vector<UnitTime> unit_times(std::span<const WorkTime> work, std::int64_t steps);

/// What a rank has counted so far.
struct RunCounters {
  std::vector<WorkTime> work{};
  Lateness lateness{};
  HostCounts host{};
  static RunCounters now(ProcessGroup& group);
  RunCounters& operator-=(const RunCounters& other);
};

/// Collects the settled steps of a run. One per rank, on its thread.
class RunClock {
 public:
  explicit RunClock(ProcessGroup& group) : group_(group) {}
  /// From here on work counts.
  void start();
  bool has_started() const { return has_started_; }
  void add_step(double seconds);
  /// What is counted while one lives is no step's: evaluations, saves.
  class Pause {
   public:
    explicit Pause(RunClock& clock);
    ~Pause();
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    RunClock& clock_;
    RunCounters before_;
  };
  /// Times of the steps so far. Collective.
  RunTimes times() const;

 private:
  ProcessGroup& group_;
  bool has_started_ = false;
  RunCounters begun_;  // when it started, plus pauses since
  std::int64_t num_steps_ = 0;
  std::vector<double> recent_;  // seconds of the last steps, in a ring
};

/// For the run's report; at most `most` units, the others added up. Empty without steps.
std::string print_run_times(const RunTimes& times, std::size_t most = 12);

}  // namespace sherd::train
