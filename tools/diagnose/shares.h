#pragma once
// What a step of a run is made of: seconds that add up to it, evaluations and saves between steps included.
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "tools/diagnose/run_file.h"

namespace sherd::diagnose {

enum class Share : std::uint8_t {
  data,         ///< the batch
  compute,      ///< forward, backward and optimizer without what they wait for
  gathers,      ///< exposed transfers of units' parameters
  reductions,   ///< exposed transfers of units' gradients
  collectives,  ///< other exposed transfers: of tensor parallelism, losses, norms
  skew,         ///< waits for ranks that come later
  device,       ///< waits for the numbers of a step from its device
  evaluation,
  saves,
  other,
};
inline constexpr std::size_t kNumShares = 10;
/// "exposed gathers" and so on.
std::string_view name(Share share);

struct Shares {
  std::array<double, kNumShares> seconds{};  ///< per step
  double at(Share share) const { return seconds[static_cast<std::size_t>(share)]; }
  double& at(Share share) { return seconds[static_cast<std::size_t>(share)]; }
  double total() const;
  double transfers() const { return at(Share::gathers) + at(Share::reductions) + at(Share::collectives); }
  Shares& operator*=(double factor);
};

/// Means over the settled steps of a run. An evaluation or a save after the last step that the run was asked for, which
/// no setting repeats, is left out.
Shares shares_of(const RunFile& run);

/// Units whose names differ in a number alone are one: "blocks.*".
std::string family_of(std::string_view unit);
/// The family whose gathers, or reductions, are exposed most; empty without units.
std::string most_exposed(const RunFile& run, UnitTime::Part UnitTime::* part);

}  // namespace sherd::diagnose
