#pragma once
// Proves the invariants that executors and passes rely on. Runs after recording and after every change of a program.
#include "compile/ir/program.h"

namespace sherd::ir {

/// Throws Error naming the node (as printed) and the rule it breaks:
///   1. every ref names a value and is within its bytes
///   2. bytes of a temporary are written before they are read, added to or returned
///   3. a temporary is freed once, after its last use, unless the step returns it; nothing else is freed
///   4. the data of a unit's storage is not used while it is gone: before the node that restores it, after the one that
///      releases it; a node says what it restores of what was gone, and releases of what was there
///   5. the op's infer, given the inputs, agrees with the outputs; views are not nodes; outputs are dense or lie as
///      infer says, unless the kernel takes any strides, and no two elements of what is written share bytes
///   6. apart from effects, a node writes no bytes that it also reads, except element by element
///   7. bindings, updates, guards and places name slots and values that exist; an entry of a table has one name and is
///      one value; values are on their guard's device, and a node's tensors on its own
///   8. a node finds what it was recorded to find: versions of bytes, effects and calls of its queue (numbers.h)
///   9. where waits are nodes, bytes of a queue are neither touched nor freed before a wait for it (loans.h)
///  10. a node has attributes of its row's kind, writes those of its inputs that its row says, and has scratch of its
///      own, of as many bytes as its row asks for
void verify(const Program& program);

}  // namespace sherd::ir
