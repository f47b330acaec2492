#pragma once
// Signatures that follow from a row's columns: dims, traits and algebra.
#include "dtensor/rule.h"

namespace sherd {

/// Whether the columns of the row say how it may be sharded.
bool is_derivable(const Op& op);
/// What they say.
void add_derived_signatures(const RuleCall& call, Signatures& signatures);

}  // namespace sherd
