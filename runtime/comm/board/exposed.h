#pragma once
// How much of the communication hides behind compute.
#include "runtime/comm/board/lateness.h"
#include "runtime/comm/group/host_group.h"

namespace sherd {

/// Seconds so far on this rank. A collective on a queue that is hidden behind compute counts in `total` alone.
struct CommTimes {
  /// The rank's thread, or its device, waited for other ranks, or the thread did a queue's work because it would have to
  /// wait. Waits for copies (exec/copy_queues.h) are no part of it.
  double exposed = 0;
  /// The part of `exposed` until the last rank came to the collective: waiting that a faster link would not shorten.
  double skew = 0;
  /// All collectives that have ended, those of several queues one after the other, including the time they waited for
  /// late ranks; on a device with what was waited for them before they began. There `exposed` is a part of it.
  double total = 0;

  /// Exposed time after all ranks had come: moving, reducing, and waking up.
  double transfer() const { return exposed - skew; }

  friend CommTimes operator-(const CommTimes& a, const CommTimes& b) {
    return {a.exposed - b.exposed, a.skew - b.skew, a.total - b.total};
  }
  CommTimes& operator+=(const CommTimes& other) {
    exposed += other.exposed;
    skew += other.skew;
    total += other.total;
    return *this;
  }
};

/// The times of `group` and of the subgroups divided from it that are alive: those of a mesh. On the rank's thread;
/// its queues should work for no other groups.
CommTimes comm_times(ProcessGroup& group);
/// How late this rank comes to the collectives of the same groups, its queues' too.
Lateness lateness_of(ProcessGroup& group);
/// The counts of the same groups, added up.
CommCounts counts_with_subgroups(ProcessGroup& group);

}  // namespace sherd
