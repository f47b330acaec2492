#pragma once
// What a pass that plans a step can do wrong, drawn at random: a wait or a release that is missing, nodes that depend
// on each other in the wrong order, a repeated node of other inputs or attributes, two values in one place at one time,
// bytes that come back from the wrong home, or too early.
#include "tests/compile/corruptions.h"

namespace sherd::testing {

/// `apply` leaves the program as it was where it returns false. Frees follow what was done, and in every other draw the
/// numbers of nodes too, as a pass would leave them.
const std::vector<Corruption>& plan_corruptions();

/// Whether neither has effects, and neither writes a byte that the other touches.
bool are_independent(const GraphNode& a, const GraphNode& b);

/// The same program on a machine whose queues are as late as its waits let them be: what a node hands to a queue runs
/// right before the first wait for it, or at the end. Frees stay where they are. A sound program runs to equal bits
/// then.
Program with_late_queues(const Program& program);

}  // namespace sherd::testing
