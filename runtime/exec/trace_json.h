#pragma once
// A trace as text that Perfetto and chrome://tracing open ("JSON Array/Object Format" of the Trace Event Format).
//
//   process  rank 0
//     track  compute       step 11 > forward > blocks.0 > blocks.0.attn > linear
//     track  gather        unshard (blocks.1)     --arrow-->  the first op of compute that used it
//     counters             memory by category, page faults, system allocations
#include <string>
#include <string_view>
#include <vector>

#include "runtime/exec/trace.h"

namespace sherd {

/// The events of one rank, one JSON object per line, lines joined by ",\n". Begin and end events nest on every track;
/// an arrow whose other end was not recorded is left out. Module spans are made from the paths of consecutive ops.
std::string trace_events(const Trace& trace, int rank);

/// A whole file from the events of all ranks. `notes` go into its "otherData".
std::string trace_file(const std::vector<std::string>& events_of_ranks,
                       const std::vector<std::pair<std::string, std::string>>& notes);

}  // namespace sherd
