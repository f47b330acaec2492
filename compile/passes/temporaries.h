#pragma once
// Memory that the dispatcher would allocate by itself, as values: then the program alone says what a step holds.
#include "compile/ir/program.h"

namespace sherd::ir {

/// `%0 += row(...)` of a row whose kernel cannot add becomes `%1 = row(...)`, `%0 += copy(%1)`, as the dispatcher does
/// it, so with equal bits.
void accumulate_apart(Program& program);

/// Gives every node whose kernel asks for scratch a temporary for it (GraphNode::scratch), of the account "workspace".
void scratch_as_values(Program& program);

}  // namespace sherd::ir
