#pragma once
// Combinations of placements that the inputs of a call may have.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/op/core/op.h"
#include "tests/dtensor/validate/parts.h"

namespace sherd::testing {

/// Placements per input, of each axis; none for an input that is absent.
struct Combination {
  std::vector<Placements> in;
};
/// "S0 R -" along one axis, "S0,P R,R -,-" along two.
std::string to_string(const Combination& combination);

/// The placements that one tensor may have along an axis: Replicate, Shard of every dim, Partial of every kind its
/// dtype has.
std::vector<Placement> placements_of(const Tensor& tensor);

/// What the rule of a row lists for these inputs, besides all-Replicate; nothing if it has no rule.
std::vector<Combination> listed_signatures(const Op& op, std::span<const Tensor> inputs, const Attrs& attrs);

/// Different combinations along `axes` axes, at most `limit`: all there are, or listed signatures (and pairs of them)
/// first, then those where one input is not replicated, then others drawn from `seed`.
std::vector<Combination> combinations(std::span<const Tensor> inputs, std::span<const Combination> signatures, int axes,
                                      std::size_t limit, std::uint64_t seed);

}  // namespace sherd::testing
