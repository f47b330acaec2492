#pragma once
#include "compile/ir/program.h"

namespace sherd::ir {

/// Puts values that ssa() took apart back into the storages of the recorded run, where they do not live at the same
/// time: a program that no other pass has changed uses memory as the recorded run, to the byte.
/// Values that were recorded elsewhere, or no longer fit there, get the bytes of an input of their node that is over,
/// if `improves` is on.
void place_eager(Program& program, bool improves = false);

}  // namespace sherd::ir
