#pragma once
// Which of a row's signatures a call takes along every axis of its mesh.
#include "dtensor/rule.h"

namespace sherd {

/// Layouts of one call: the inputs' after redistribution, and the results'.
struct Choice {
  SmallVec<const Spec*, 4> in;
  SmallVec<const Spec*, 2> out;
};

/// The cheapest legal combination, priced by the transitions of the inputs from `from` (null: absent, or plain and so
/// replicated). Ties: the one that moves fewer inputs, then one whose first result has the layout `wanted` (may be
/// null), then the one listed first. The same on all ranks.
Choice choose_layouts(const RuleCall& call, const Signatures& signatures, const DeviceMesh& mesh,
                      std::span<const Spec* const> from, const Distributed* wanted);

}  // namespace sherd
