#pragma once
// What a transfer between the ranks of a group takes here.
#include <span>
#include <vector>

#include "runtime/comm/group/process_group.h"
#include "runtime/exec/price.h"

namespace sherd {

/// Numbers of this rank's, the largest of all ranks. Collective.
std::vector<double> largest_of_ranks(ProcessGroup& group, std::span<const double> own);

/// Seconds until a transfer is through, and those of them that the calling thread computes or copies.
struct CollectiveTime {
  double wall = 0, own = 0;
};
/// Times the movement on f32 tensors of `bytes` in full, on the calling thread, beside nothing else: medians of `runs`
/// after one that does not count, the largest of all ranks. Collective. Holds such a tensor and a part of it, in the
/// account of communication.
CollectiveTime time_collective(ProcessGroup& group, Movement movement, double bytes, int runs);

}  // namespace sherd
