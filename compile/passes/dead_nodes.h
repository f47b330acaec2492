#pragma once
// Nodes for nobody.
#include "compile/ir/program.h"

namespace sherd::ir {

/// Takes out nodes whose results no other node, result or slot mentions, and which do nothing else; and what only they
/// read. A node that makes bytes which others write stays, whether or not they are read as it has left them.
void drop_dead_nodes(Program& program);

}  // namespace sherd::ir
