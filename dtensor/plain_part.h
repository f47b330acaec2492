#pragma once
// Plain tensors among distributed ones that may be a rank's part of something: what is ambiguous, and the remedy.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "dtensor/rule.h"

namespace sherd {

/// The remedy is the same for whatever is ambiguous.
inline constexpr std::string_view kSayHowItLies =
    "distribute() it, say with from_local() how it lies, or, if it is equal on all ranks, open an ImplicitReplication "
    "scope around forward and backward()";

/// Whether some rank's part of dim `dim`, of `size` elements, has `count`. All ranks ask for all ranks' parts, because
/// all must refuse.
bool has_part_of(const Spec& spec, int dim, std::int64_t size, std::int64_t count);

/// For rules of rows with an index per element of input 0, which may be smaller than that along all dims but `dim`.
/// Error, unless in an ImplicitReplication scope, if input i is a plain one that is smaller along a sharded dim and as
/// long there as some rank's part: it may be of that part.
void refuse_part(const RuleCall& call, std::size_t i, int dim);

}  // namespace sherd
