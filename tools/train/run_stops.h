#pragma once
// What ranks are asked for between two steps: what one rank is asked for, all do.
#include <cstdint>
#include <functional>

#include "runtime/comm/group/host_group.h"

namespace sherd::train {

/// What to do at a step boundary; of all ranks together, once they have agreed.
struct Wishes {
  int stop = 0;  ///< the number of a signal
  bool save = false;
  bool regroup = false;  ///< the next group is to be formed
};

class RunStops {
 public:
  /// The number of the signal that asks this rank to stop, 0 if none does. See StopSignals::noted.
  using StopPoll = std::function<int()>;
  /// Whether this rank is asked to save and go on. See StopSignals::take_save.
  using SavePoll = std::function<bool()>;

  /// Each poll is set on all ranks or on none.
  RunStops(ProcessGroup& group, const StopPoll& stop, const SavePoll& save) : group_(group), stop_(stop), save_(save) {}

  bool has_polls() const { return stop_ || save_; }
  /// Local.
  Wishes own() const { return {.stop = stop_ ? stop_() : 0, .save = save_ && save_()}; }
  /// Collective.
  Wishes agreed(const Wishes& own) const {
    std::int64_t wishes[] = {own.stop, own.save ? 1 : 0, own.regroup ? 1 : 0};
    group_.host().all_reduce({in_place(wishes, DType::i64, 3)}, {.kind = ReduceKind::max});
    return {static_cast<int>(wishes[0]), wishes[1] != 0, wishes[2] != 0};
  }
  /// The signal to stop by. Collective; without the poll 0, and no communication.
  int stop() const { return stop_ ? agreed({.stop = stop_()}).stop : 0; }

 private:
  ProcessGroup& group_;
  const StopPoll& stop_;
  const SavePoll& save_;
};

}  // namespace sherd::train
