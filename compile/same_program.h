#pragma once
// Ranks that replay different programs would hang or mix up each other's data, so they compare first.
#include "compile/graph.h"
#include "runtime/comm/process_group.h"

namespace sherd {

/// Collective over `group`: throws Error on every rank if the graphs differ in more than sizes of local parts, naming
/// the ranks that differ from the majority and the first differing line. One small all_gather when they agree.
void check_same_program(const Graph& graph, ProcessGroup& group);

}  // namespace sherd
