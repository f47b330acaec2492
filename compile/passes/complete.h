#pragma once
#include "compile/ir/program.h"

namespace sherd {

/// What the dispatcher and the first touch of bytes do by themselves in a recorded run becomes nodes and values: sums
/// of rows that cannot add, scratch, waits. With equal bits, and memory equal to the byte.
void complete(Program& program);

}  // namespace sherd
