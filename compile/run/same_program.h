#pragma once
// Ranks that replay different programs would hang or mix up each other's data, so they compare first.
#include "compile/ir/program.h"
#include "runtime/comm/group/process_group.h"

namespace sherd {

/// Collective over `group`: false if some rank has no program yet (null); else compares them. Throws Error on every
/// rank if the programs differ in more than sizes of local tensors, naming the ranks that differ from the majority and
/// the first differing line. One small all_gather unless they differ.
bool check_same_program(const Program* program, ProcessGroup& group);

}  // namespace sherd
