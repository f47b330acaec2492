#pragma once
// When the values of a program end.
#include <vector>

#include "compile/ir/program.h"

namespace sherd::ir {

/// By value: the node that mentions it last, as input, output or scratch; the number of nodes if the step returns it or
/// leaves it in a slot; -1 if nothing mentions it.
std::vector<int> last_mentions(const Program& program);

/// By value: the node after which nobody uses it. That is the last mention; where waits are nodes and a queue uses it
/// then, the wait, and the number of nodes if there is none.
std::vector<int> ends_of_lives(const Program& program);

}  // namespace sherd::ir
