#pragma once
// How much a program holds, before it runs: the interpreter on a ghost rank (runtime/memory/README.md), which has
// storages like this rank's and groups of the same names. No bytes are touched and nobody is asked.
#include "compile/ir/footprint.h"
#include "compile/ir/program.h"

namespace sherd {

/// The accounts of one replay on this rank, to the byte those of the replay itself: the program is to be as passes left
/// it, with scratch as values and waits as nodes, and names groups that are known here. Arguments, slots and constants
/// hold what their values say, on the device of the program. Takes as long as the program without its kernels.
ir::Footprint footprint_of(const ir::Program& program);

}  // namespace sherd
