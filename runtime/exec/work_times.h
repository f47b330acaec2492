#pragma once
// How long the work of a rank's queues takes, by what it is and what it acts on, and how much of that the rank's
// compute has waited for: the gathers of a unit, its reductions. Always counted: a look-up and a few additions per
// item. Compute is the rank's thread, and for work of a device the device's.
#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/tensor/no_copy.h"

namespace sherd {

struct QueueItem;

/// Times, in seconds, of all work with one queue, name and subject.
struct WorkTime {
  std::string queue{}, name{}, subject{};  ///< "gather", "unshard", "blocks.3"
  std::int64_t calls = 0;
  double seconds = 0;  ///< on the queue, from the start of an item to its end
  double exposed = 0;  ///< compute waited for it, or the rank's thread ran it because it would have to wait
  double skew = 0;     ///< of that, until the last rank had come

  double transfer() const { return exposed - skew; }
  WorkTime& operator+=(const WorkTime& other);
  WorkTime& operator-=(const WorkTime& other);
};

/// What a rank has counted, in no order that means anything.
class WorkTimes : NoCopy {
 public:
  /// An item that is over and that the rank has let go of.
  void add(const QueueItem& item);
  /// The same in parts, for work whose times are known later.
  void count(const QueueItem& item);
  void add_times(const QueueItem& item);
  void add_wait(const QueueItem& item);
  /// Seconds of collectives on devices.
  double shared_seconds() const { return shared_seconds_; }
  void add_shared(double seconds) { shared_seconds_ += seconds; }
  std::vector<WorkTime> list() const;

 private:
  using Texts = std::array<std::string_view, 3>;
  WorkTime& entry(const QueueItem& item);

  double shared_seconds_ = 0;
  std::deque<WorkTime> all_;
  std::map<Texts, WorkTime*> by_work_;  // queue, name and subject of its entries
};

/// Times of the calling thread's rank since it began. Work of a host queue counts once it was waited for; a call of a
/// device queue when it is submitted, its times when it is over (device_times.h), what compute has waited for of a
/// collective once ranks have compared.
std::vector<WorkTime> work_times();

}  // namespace sherd
