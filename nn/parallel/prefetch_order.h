#pragma once
// Which group to gather next, predicted from the recorded order of the modules:
//
//   forward    entered:  root b0 b1 b2         the next one in the order of the forward before
//   backward   left:     b0 b1 b2 root         the previous one in the order in which this forward's modules ended
//
// The second also tells when the backward of a module is over. A wrong prediction costs time, nothing else. It depends
// on the program alone, so all ranks predict alike.
#include <cstddef>
#include <cstdint>
#include <vector>

namespace sherd::nn {

class ShardGroup;

class PrefetchOrder {
 public:
  /// The root's forward begins, or ends, also by an exception. Modules called outside of it are not recorded.
  void begin_forward();
  void end_forward() { in_forward_ = false; }
  /// `group` is about to run; returns the group that ran after it last time, or null.
  ShardGroup* enter(ShardGroup* group);

  /// A forward call whose backward is pending. Calls of several forwards may be.
  struct Call {
    std::uint64_t epoch = 0;  // changes when a backward ends; 0: no call
    std::size_t before = 0;   // calls that had ended when it began
    std::size_t index = 0;
  };
  /// A call begins; leave() marks its end.
  Call begin() const { return {epoch_, left_.size(), 0}; }
  Call leave(ShardGroup* group, Call begun);
  /// Whether the backward of `call` is over when that of `next` begins: backward runs in reverse order of computation.
  static bool is_over(Call call, Call next) { return call.epoch == next.epoch && call.before > next.index; }
  /// The backward of that call begins; returns the group whose backward is predicted next, or null.
  ShardGroup* enter_backward(Call call) const;
  /// Forgets pending calls: backward has ended.
  void end_backward();
  /// Clears everything: ranks that left a step at different places must predict alike again.
  void forget();

 private:
  static constexpr std::size_t kMaxPending = 1 << 16;  // forwards that never see a backward
  bool in_forward_ = false;
  std::vector<ShardGroup*> last_, now_;
  std::size_t at_ = 0;  // in last_: after the last group that was found there
  std::vector<ShardGroup*> left_;
  std::uint64_t epoch_ = 1;
};

}  // namespace sherd::nn
