#pragma once
// When the work of a device's queue ran and how long compute waited for it, by marks before and behind it. They are
// read when they have been reached; nobody waits for them.
//
//   queue     . begun [a a a a a a] ended
//   compute   [kernels] comes . . . waits [kernels]       exposed: from where compute comes, or the work before ended
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "runtime/exec/queue_item.h"
#include "runtime/exec/shared_work.h"
#include "runtime/exec/timed_mark.h"
#include "runtime/tensor/no_copy.h"

namespace sherd {

/// Measures one queue, on the rank's thread, for the trace and the WorkTimes of that rank. Work of a device that keeps no
/// times counts as calls alone.
class DeviceTimes : NoCopy {
 public:
  explicit DeviceTimes(const Queue& queue);
  ~DeviceTimes();

  using Mark = std::shared_ptr<DeviceMark>;
  /// `shared`: what ranks know of it together; null of work of one rank.
  void submitted(QueueItem item, std::uint64_t flow, Mark begun, Mark ended, std::shared_ptr<SharedWork> shared);
  /// Compute has come to `compute` and waits there for the work up to `sequence`.
  void awaited(std::uint64_t sequence, Mark compute);
  /// Counts what is over; waits for what ranks share once they have compared.
  void collect();
  /// Counts all that is over, of what was not compared the waits alone.
  void finish();
  void clear();

 private:
  struct Timed {
    QueueItem item;
    std::uint64_t flow;
    Mark begun, ended;
    std::shared_ptr<SharedWork> shared;
  };
  struct Wait {
    std::uint64_t sequence;
    Mark compute;
  };
  void expose(QueueItem& item);
  void add_skews();

  const Queue& queue_;
  std::deque<Timed> items_;      // in order; not collected
  std::deque<Wait> waits_;       // in order; for items that were not collected
  std::vector<Timed> unshared_;  // whose waits are not counted: other ranks have not said what they know
  std::int64_t last_ended_ = 0;
};

/// Counts what is over on all queues of devices of the calling thread's rank. Waits for nothing.
void collect_device_times();

}  // namespace sherd
