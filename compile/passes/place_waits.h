#pragma once
#include "compile/ir/program.h"

namespace sherd::ir {

/// Waits for queues as nodes, at the points where the rank's thread waits in the recorded run:
///   - before the first node that touches bytes which a queue writes, or writes bytes which a queue uses
///   - before a call whose queue holds as many items as it may (Op::queue), for the oldest
///   - after a call whose result nobody uses
/// Provides has_waits: from then on verify() demands that nothing touches or frees bytes of a queue before a wait, and
/// a temporary that a queue uses when the step ends is not freed by a node. Waits that are there are placed anew.
void place_waits(Program& program);

}  // namespace sherd::ir
