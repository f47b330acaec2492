#pragma once
// A small collective in two halves, so that it costs no thread: the rank's thread publishes its part when it issues the
// call, and reads the peers' when somebody wants the result. In between nobody works for it, and peers do not wait.
//
//   rank 0   begin: enter, show, come to the meeting | compute . . . . . . | finish: meet, read, leave
//   rank 1             compute . . . . | begin                  | finish   (rank 0 has come: no wait)
//
// The rounds are those of any staged call, so a rank that runs its call at once meets one that splits it.
#include <optional>

#include "runtime/comm/board/board_lane.h"
#include "runtime/comm/board/exchange.h"
#include "runtime/tensor/no_copy.h"

namespace sherd::comm {

class SplitCall : NoCopy {
 public:
  /// Whether a call can be split: a gather or a reduction to parts that is staged in one round.
  static bool fits(const Collective& call, const BoardLane& lane);

  SplitCall(Collective call, BoardLane& lane) : call_(std::move(call)), lane_(lane) {}

  /// The first half. Does not wait. Error if the call is wrong or the group failed.
  void begin();
  bool has_begun() const { return exchange_.has_value(); }
  /// Whether finish() would not wait: all have come, or the group has failed.
  bool is_ready() const;
  /// The second half. Throws what the call throws.
  void finish();

 private:
  template <class Body>
  void guarded(Body&& body);

  const Collective call_;
  BoardLane& lane_;
  std::optional<BoardLane::Opened> opened_;
  std::optional<Exchange> exchange_;
  std::uint64_t number_ = 0;  // on the board
};

}  // namespace sherd::comm
