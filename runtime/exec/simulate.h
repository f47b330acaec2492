#pragma once
// A step as it would run: timelines of ranks, played by prices. Work of a queue comes in order; collectives begin when
// the last rank has come, and have the links of their ranks to themselves, one after the other on a fabric.
//
//   simulate(timeline, cluster).seconds                                        one class: all ranks do the same
//   simulate(timeline, cluster, {.compute = {1, 1.3, 1, 1}}).ranks[0].skew     who waits for rank 1
//
// The timeline may have another order than the program it was recorded of: a compiler asks what a changed order gives.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/exec/cluster.h"
#include "runtime/exec/timeline.h"

namespace sherd {

/// Ranks that do the same.
struct RankClass {
  const Timeline* timeline = nullptr;
  std::vector<int> ranks{};  ///< empty: all that no other class names
};

struct SimulateOptions {
  std::vector<double> compute{};  ///< factor of each rank's seconds of compute; empty: 1
  std::vector<double> link{};     ///< factor of the seconds of collectives that a rank takes part in; empty: 1
  struct SlowLink {
    int a, b;          ///< ranks that are neighbours in a ring, in order of their numbers
    double bandwidth;  ///< factor of it
  };
  std::vector<SlowLink> slow_links{};
  double jitter = 0;            ///< standard deviation of a factor around 1 of each stretch of compute, drawn per rank
  std::uint64_t seed = 1;       ///< of those
  std::vector<int> spans_of{};  ///< ranks whose spans are kept
  bool waits = false;           ///< whether who waits for whom is kept
};

struct Simulation {
  struct RankTimes {
    double seconds = 0;          ///< until its thread and its queues are through
    double compute = 0;          ///< of its thread, and what its core does for collectives: Cluster::core_share
    double transfer = 0;         ///< exposed: its thread waits, all ranks of the collective have come
    double skew = 0;             ///< exposed: its thread waits for a rank that comes later
    double throttle = 0;         ///< exposed: its thread waits as a queue is full
    double caused = 0;           ///< skew of other ranks whose collectives it came to last
    std::vector<double> busy{};  ///< by queue, see `queues`
  };
  /// Collectives of one unit, or of one axis and fabric; seconds are means over ranks.
  struct Part {
    std::string name, fabric{};
    double calls = 0, wire_bytes = 0;                          ///< of a rank, sent
    double seconds = 0, transfer = 0, skew = 0, throttle = 0;  ///< on the queue; exposed
  };
  struct Peak {
    CategoryBytes peak{}, at_peak{};
    std::int64_t bytes = 0;
    double seconds = 0;  ///< when, since the step's start
    std::string module{}, op{};
    StepPhase phase = StepPhase::forward;
  };
  struct Wait {
    int rank, on;    ///< the one that waits, and the one that came last
    double seconds;  ///< that it would stand still less if that one came when it comes itself
  };
  struct Span {
    double start, end;
    std::uint32_t entry;  ///< of the timeline
  };
  struct RankSpans {
    int rank;
    const Timeline* timeline;
    std::vector<Span> spans;  ///< of calls and waits on the thread, of items on their queue
  };

  double seconds = 0;  ///< of the rank that is last
  int last_rank = 0;
  /// By rank; one alone for all where none differs.
  std::vector<RankTimes> ranks;
  std::vector<std::string> queues;
  std::vector<Part> units, axes;  ///< in the order of their first item
  std::vector<Peak> peaks;        ///< by class
  std::vector<RankSpans> spans;
  std::vector<Wait> waits;       ///< skew by who causes it; by rank, where options ask for it
  bool is_extrapolated = false;  ///< a price was asked for outside of what its curve covers

  const RankTimes& of(int rank) const { return ranks[ranks.size() == 1 ? 0 : static_cast<std::size_t>(rank)]; }
};

/// Error naming what is wrong: ranks that no class or two have, groups that do not fit the ranks, classes whose
/// collectives do not match, factors of another number of ranks or below 0, a device without a price.
Simulation simulate(std::span<const RankClass> classes, const Cluster& cluster, const SimulateOptions& options = {});
Simulation simulate(const Timeline& timeline, const Cluster& cluster, const SimulateOptions& options = {});

/// Events of one rank's spans for trace_file() (trace_json.h): its thread, its queues, and memory by category.
std::string simulated_events(const Simulation::RankSpans& spans);

}  // namespace sherd
