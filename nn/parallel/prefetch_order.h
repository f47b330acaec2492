#pragma once
// Which group to gather next. Nobody tells fully_shard the order in which modules run, so it is recorded:
//
//   forward    entered:  root b0 b1 b2         the next one in the order of the forward before
//   backward   left:     b0 b1 b2 root         the previous one in the order in which this forward's modules ended
//
// The second also tells when backward is through with a module. A guess costs time if it is wrong, nothing else. It
// depends on the program alone, so all ranks guess alike.
#include <cstddef>
#include <cstdint>
#include <vector>

namespace sherd::nn {

class ShardGroup;

class PrefetchOrder {
 public:
  /// The root's forward begins, or ends however it ends. Modules called outside of it are neither recorded nor guessed.
  void begin_forward();
  void end_forward() { in_forward_ = false; }
  /// `group` is about to run: the one that ran after it the last time, or null.
  ShardGroup* enter(ShardGroup* group);

  /// A call whose backward will come. Calls of several forwards may be pending.
  struct Call {
    std::uint64_t epoch = 0;  // 0: of none
    std::size_t before = 0;   // calls that had ended when it began
    std::size_t index = 0;
  };
  /// A call begins now; leave() says that it has ended.
  Call begin() const { return {epoch_, left_.size(), 0}; }
  Call leave(ShardGroup* group, Call begun);
  /// Backward, which runs what was computed last first, is through with `call` when that of `next` begins.
  static bool is_over(Call call, Call next) { return call.epoch == next.epoch && call.before > next.index; }
  /// The backward of that call begins: the group whose backward is expected next, or null.
  ShardGroup* enter_backward(Call call) const;
  /// Forgets pending calls: backward has ended.
  void end_backward();
  /// Back to the beginning: ranks that left a step at different places must guess alike again.
  void forget();

 private:
  static constexpr std::size_t kMaxPending = 1 << 16;  // forwards that never see a backward
  bool in_forward_ = false;
  std::vector<ShardGroup*> last_, now_;
  std::size_t at_ = 0;  // in last_: behind the last group that was found there
  std::vector<ShardGroup*> left_;
  std::uint64_t epoch_ = 1;
};

}  // namespace sherd::nn
