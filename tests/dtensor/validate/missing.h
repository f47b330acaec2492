#pragma once
// Combinations that need no communication although a rule says they do: the plain row is run on the local tensors of
// every rank in turn, and if the outputs can be read as some placement of the right result, whatever the values, a
// signature is missing. This knows nothing of rules, and one rank is enough.
#include <optional>
#include <string>

#include "tests/dtensor/validate/combinations.h"
#include "tests/dtensor/validate/variants.h"

namespace sherd::testing {

/// Placements of the outputs, "P" or "S0 R", that local calls give if the inputs have this combination along one axis
/// of `ranks`; nothing if they give none. Combinations of one axis.
std::optional<std::string> local_execution(const Op& op, const Variant& variant, const Combination& combination,
                                           int ranks);

}  // namespace sherd::testing
