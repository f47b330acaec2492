#pragma once
// What a way takes at least, from ghosts that do less than it does. One makes the passes of its micro-batches, forward
// and backward, with all that tp sends; many ways share it. The other one makes everything else, on a mesh by a
// strategy in units, with the least to compute. Blocks are alike, so that both are of two models of few blocks.
#include <cstdint>
#include <map>
#include <string>

#include "tools/plan/planner.h"
#include "tools/plan/space.h"

namespace sherd::plan {

using LinkSeconds = std::map<std::string, double, std::less<>>;  ///< collectives by fabric

/// A pass of one micro-batch.
struct PassBound {
  double forward = 0, backward = 0;  ///< seconds, with waits for tp
  double compute = 0;                ///< without
  LinkSeconds links{};
  double activations = 0;  ///< most bytes of them
  std::string left_out{};  ///< why nothing can be run so; else empty
};

/// What is beside the passes of a step of one or two micro-batches.
struct RestBound {
  double compute = 0;
  double before = 0, after = 0;  ///< seconds until the first call of a pass, and from the last one on
  LinkSeconds links{}, first_links{}, last_links{};  ///< all; until forward is first over; since it is last over
  double state = 0;                                  ///< bytes of parameters and optimizer state
  std::string left_out{};
};

PassBound pass_bound(const SearchSpace& space, const Way& way, const PlannedFor& planned);
/// The way has one micro-batch, or two.
RestBound rest_bound(const SearchSpace& space, const Way& way, const PlannedFor& planned);

/// Seconds of a step of a way: of its passes alone, and with the rest. `two` is of two micro-batches, each after the
/// second as long as that; it is `one` where the way has one.
double least_seconds(const PassBound& pass, std::int64_t micro_batches);
double least_seconds(const PassBound& pass, const RestBound& one, const RestBound& two, std::int64_t micro_batches);

}  // namespace sherd::plan
