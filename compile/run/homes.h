#pragma once
// Where a captured step moves bytes to on this rank, and what that takes.
#include <vector>

#include "compile/ir/program.h"
#include "runtime/exec/price.h"
#include "runtime/op/copy/offload_homes.h"

namespace sherd {

/// A home for each of the program's constants from `first` on that is one (ir/homes.h), in their order; each is taken
/// as long as its handle is there. Errors of OffloadHomes::take().
std::vector<Ref<Storage>> take_homes(const ir::Program& program, std::size_t first, OffloadHomes& homes);

/// Adds what a byte takes to a home and from there, of medians of up to five copies of 4 MiB, or of what `most_bytes`
/// allow if that is not 0, for `seconds` at most; ir::copy_seconds() reads it. In the account of workspace; waits.
void measure_copies(OffloadHomes& homes, double seconds, std::int64_t most_bytes, Prices& prices);

}  // namespace sherd
