#pragma once
// What the units of a tree do when, as a function of the calls that were recorded: nothing here moves a byte, and units
// are numbers.
//
//   forward    entered:  root b0 b1 b2         gather next: the one that came next in the forward before
//   backward   left:     b0 b1 b2 root         gather next: the one whose forward ended before; reshard those whose
//                                              forward began after this one's ended
//
// A wrong prediction costs time, nothing else. It depends on the program alone, so all ranks predict alike.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/tensor/small_vec.h"

namespace sherd::nn {

/// A unit's place in its tree.
using UnitId = std::int32_t;
inline constexpr UnitId kNoUnit = -1;

class UnitSchedule {
 public:
  /// The root's forward begins, or ends, also by an exception. Modules called outside of it are not recorded.
  void begin_forward();
  /// Returns whether the next forward is predicted otherwise than this one was.
  bool end_forward() {
    in_forward_ = false;
    return now_ != last_;
  }
  /// `unit` is about to run; returns the unit that ran after it last time, or none.
  UnitId enter(UnitId unit);

  /// Units in the order in which they were entered in the forward that runs, or the last one.
  const std::vector<UnitId>& order() const { return now_.empty() ? last_ : now_; }

  /// A forward call whose backward is pending. Calls of several forwards may be.
  struct Call {
    std::uint64_t epoch = 0;  // changes when a backward ends; 0: no call
    std::size_t before = 0;   // calls that had ended when it began
    std::size_t index = 0;
  };
  /// A call begins; leave() marks its end.
  Call begin() const { return {epoch_, left_.size(), 0}; }
  Call leave(UnitId unit, Call begun);
  /// Whether the backward of `call` is over when that of `next` begins: backward runs in reverse order of computation.
  static bool is_over(Call call, Call next) { return call.epoch == next.epoch && call.before > next.index; }

  struct Backward {
    SmallVec<UnitId, 4> over;  ///< to reshard: their backward is over
    UnitId next = kNoUnit;     ///< to gather, if any: its backward is predicted to be next
  };
  /// The backward of that call of `unit` begins; of no call: nothing is known of it.
  Backward begin_backward(UnitId unit, Call call);
  /// Forgets pending calls: backward has ended.
  void end_backward();
  /// Clears everything: ranks that left a step at different places must predict alike again.
  void forget();

 private:
  static constexpr std::size_t kMaxPending = 1 << 16;  // forwards that never see a backward
  struct Begun {
    UnitId unit;
    Call call;
  };
  bool in_forward_ = false;
  std::vector<UnitId> last_, now_;
  std::size_t at_ = 0;  // in last_: after the last unit that was found there
  std::vector<UnitId> left_;
  std::vector<Begun> in_backward_;  // has begun and is not known to be over
  std::uint64_t epoch_ = 1;
};

}  // namespace sherd::nn
