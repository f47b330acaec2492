#pragma once
// Ranks that replay different programs would hang or mix up each other's data, so they compare first.
#include "compile/ir/program.h"
#include "runtime/comm/group/process_group.h"

namespace sherd {

/// Collective over `group`: false if some rank has no program yet (null); else compares them (agree.h). Throws Error on
/// every rank if the programs differ in more than sizes of local tensors, with the first line that differs and who has
/// which.
bool check_same_program(const ir::Program* program, ProcessGroup& group);

}  // namespace sherd
