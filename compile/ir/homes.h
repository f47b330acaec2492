#pragma once
// Homes: constants of a program without contents of their own. Copies write them before they read them, so that bytes
// are outside of memory meanwhile (runtime/op/copy/offload.h).
#include <vector>

#include "compile/ir/program.h"

namespace sherd::ir {

/// By constant: whether it is a home of what the program moves out of memory.
std::vector<bool> homes_of(const Program& program);

/// A new home of `bytes` on the host, as the last of the program's constants: u8[bytes].
TensorRef add_home(Program& program, std::int64_t bytes, MemoryCategory category);

/// Appends a node that starts to write the bytes of a value to a home, in the module and phase of `beside`.
void append_eviction(Program& program, const GraphNode& beside, ValueId value, const TensorRef& home);
/// Appends nodes that make a value like this one and start to read its bytes from the home. The new value.
ValueId append_fetch(Program& program, const GraphNode& beside, ValueId like, const TensorRef& home);
/// Appends a node that waits until no queue uses the bytes of the value.
void append_wait(Program& program, const GraphNode& beside, ValueId value);

}  // namespace sherd::ir
