#pragma once
// How much of the communication hides behind compute.
#include "runtime/comm/process_group.h"

namespace sherd {

/// Seconds so far on this rank. A collective on a stream that compute covers counts in `total` alone.
struct CommTimes {
  double exposed =
      0;             ///< the rank's thread waited for other ranks, or did a stream's work because it would have to wait
  double total = 0;  ///< all collectives that have ended, waiting for late ranks included

  friend CommTimes operator-(const CommTimes& a, const CommTimes& b) {
    return {a.exposed - b.exposed, a.total - b.total};
  }
  CommTimes& operator+=(const CommTimes& other) {
    exposed += other.exposed;
    total += other.total;
    return *this;
  }
};

/// Of `group` and the subgroups divided from it that are alive: those of a mesh. On the rank's thread; its streams
/// should work for no others.
CommTimes comm_times(ProcessGroup& group);
/// Of the same.
CommCounts counts_with_subgroups(ProcessGroup& group);

}  // namespace sherd
