#pragma once
// What no ghost answers: how long a step's collectives take on shaped links, and how much a step computes.
#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "nn/models/language_model.h"
#include "tools/train/config.h"

namespace sherd::walk {

using namespace train;

/// A unit of fully_shard: the elements of its parameters on this rank when they are gathered.
struct UnitSize {
  std::int64_t elements = 0;
  bool is_root = false;
};
/// The root, then the others in module order, which is that of forward.
std::vector<UnitSize> unit_sizes(nn::LanguageModel& model);

/// Seconds of a step's collectives on shaped links.
struct LinkTimes {
  struct Axis {
    double gathers = 0, reductions = 0;
    double sum() const { return gathers + reductions; }
  };
  std::array<Axis, 3> axes{};  ///< dp, replicate, both as one: links that work at the same time
  /// What nothing can hide: the root's gather, which comes first, its reduction, which is the last; without prefetch
  /// all of dp.
  double floor = 0;
  /// Shares of computing: of forward, and of what comes before the first reduction, forward and the last unit's
  /// backward.
  double forward = 0, first_reduction = 0;
  /// Seconds of dp before the first reduction over replicas: what the last unit communicates there.
  double before_replicas = 0;

  /// Seconds of the link that is busy longest.
  double busiest() const;
  /// Seconds of a step that computes for so long: no less than that and the floor, than any link takes, and than a link
  /// takes from the first reduction on, before which forward is over, and what it gathers over replicas.
  double step_seconds(double compute_seconds) const;
};

/// `config` is resolved, its mesh names its ranks. None without a link, and where more moves than parameters
/// and gradients in their own dtypes: with tp, offload, or encoded values.
std::optional<LinkTimes> link_times(const TrainConfig& config, const std::vector<UnitSize>& units);

/// How much a step computes beside one without recomputation: of the multiplications in a block, forward and twice as
/// many in backward, those that run again.
double recompute_factor(const TrainConfig& config);

}  // namespace sherd::walk
