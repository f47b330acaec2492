#pragma once
// What the calls and transfers of a program take here, measured before it runs: its kernels on made-up tensors of its
// sizes, and collectives of its groups.
#include <memory>

#include "compile/ir/program.h"
#include "runtime/comm/group/process_group.h"
#include "runtime/exec/price.h"
#include "runtime/op/copy/offload_homes.h"

namespace sherd {

struct MeasureOptions {
  double most_seconds = 3;
  std::int64_t most_bytes = 0;  ///< in the account of workspace; 0: as below
  /// Ranks that run the program together and all measure now; null: this one alone.
  std::shared_ptr<ProcessGroup> group{};
  OffloadHomes* homes = nullptr;  ///< copies to these and back have prices, too
};

/// Prices for ir::node_seconds(). Each distinct call is run through the device layer: once to warm up, those that will
/// take most of the step first, then up to nine times in turns with all others, of which the mean counts but for the
/// slowest fifth. Before each run its tensors are filled anew; those that the step has used shortly before are in the
/// core's cache, others are not. Calls for which no time is left, or no memory, are priced by rates of those that were
/// run. Units and collectives are not run:
/// transfers of their sizes are timed on the program's groups, on which a shaped link shows as it would in the step,
/// beside the thread's own time where queues have no core for themselves.
/// Memory: of one call at a time, in the account of workspace, at most most_bytes and at most what the program's
/// temporaries take at their peak or 1 MiB (of optimizers' lists, parts then lie on each other); and beside it, in no
/// account, as much again or eight of the core's caches, whichever is less. Changes no slot, counter or mode; peaks of
/// the accounting, and counts of the groups' lanes, include it. With a group it is collective, and all ranks return
/// equal prices of equal nodes: those of the rank whose calls take longest, for which the others wait. (The slowest of
/// each call would add up to a step that no rank takes.) Calls that are equal on one rank have one price on all. Error
/// if programs have other numbers of nodes, and on a ghost rank, where nothing can be measured.
Prices measure_prices(const ir::Program& program, const MeasureOptions& options = {});

}  // namespace sherd
