#pragma once
// The state of other ranks as a rank that waits sees it: frozen, computing, or asleep for a third. It only reads cells.
// Ranks have their numbers in the root here.
#include <chrono>
#include <optional>
#include <string>

#include "runtime/comm/board/board_memory.h"
#include "runtime/comm/board/wait_circle.h"

namespace sherd::comm {

class PeerStates {
 public:
  using Time = std::chrono::nanoseconds;

  explicit PeerStates(const BoardMemory& memory) : memory_(memory) {}
  /// This rank waits from now on.
  void begin(BoardClock::time_point now);

  /// The silence that this wait may hold against others.
  Silence silence() const;
  Time last_beat(int root) const;
  /// How late its sign of life may be: by its own interval and by this rank's.
  Time patience_with(int root) const;
  /// How long it has given no sign of life in this wait; nothing if that is not long, or not known.
  std::optional<Time> frozen_for(int root) const;
  /// "frozen: ...", "waiting for rank 3 for 4.2 s", "busy in matmul for 4.2 s", ...; empty if nothing is known, as of
  /// threads that are in no call.
  std::string state_of(Place place) const;
  /// The call in which its own thread is, and its state.
  std::string activity_of(int root) const;
  /// Names the rank that holds up `root`, for which this one waits, and so this one. Empty if that is `root` itself.
  std::string end_of_chain(int root) const;

 private:
  const BoardMemory& memory_;
  Time waiting_since_{0};
  Time lost_before_{0};  // by this process, before the wait
};

}  // namespace sherd::comm
