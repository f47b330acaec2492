#pragma once
#include "compile/ir/program.h"

namespace sherd::ir {

/// Makes every version of a temporary that is written whole a value of its own: `%0 = relu(%0)` becomes
/// `%1 = relu(%0)`. Value::place says where it lay. Versions that are written in part, in place or added to stay.
/// Requires a verified program; provides one whose only orders between nodes are those of data, effects and calls.
void ssa(Program& program);

}  // namespace sherd::ir
