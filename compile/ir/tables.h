#pragma once
#include "compile/ir/program.h"

namespace sherd {

/// Rule 7 of verify(), what stands before the nodes: tables, guards, bindings and values. Throws Error naming the
/// entry.
void check_tables(const Program& program);

}  // namespace sherd
