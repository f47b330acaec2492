#pragma once
// Ranks that wait for each other, proven. A *place* is a thread of a rank: the one that comes to the calls of a
// lane. A *hold* says what a place cannot go on without:
//
//   rank 0's thread    in save_checkpoint   -- sleeps in a call for -->   rank 1's thread
//   rank 1's thread    in backward          -- waits for its queue -->    rank 1's gather queue
//   rank 1's queue     in unshard           -- sleeps in a call for -->   rank 0's gather queue
//   rank 0's queue     idle                 -- gets its work from -->     rank 0's thread
//
// Each hold is necessary: where they lead back to where they began, and all of them hold at one moment, nobody goes on
// ever again. Ranks cannot be looked at all at once, but twice: a hold that is the same in two looks, and was found so
// by its own rank after the first one had ended, held when the first one ended. (A rank that is stopped finds nothing,
// and a thread that computes, reads a disk or delays for a shaped link is held by nothing.)
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/comm/board/board_memory.h"
#include "runtime/exec/running_op.h"

namespace sherd::comm {

/// A thread of a rank, by its number in the root: the one that comes to the calls of a lane.
struct Place {
  int rank, lane;
  bool operator==(const Place&) const = default;
};

struct Hold {
  Place from, to;
  bool is_call = false;          ///< from sleeps in a call
  std::uint64_t identity = 0;    ///< of the wait: another one has another
  std::int64_t found_until = 0;  ///< when its rank last found it so

  bool is_same(const Hold& other) const {
    return from == other.from && to == other.to && is_call == other.is_call && identity == other.identity;
  }
};

/// A thread's doings between its calls, in a word: its kind, the lane of the queue it waits for, a number.
struct BetweenCalls {
  ThreadState::Kind kind = ThreadState::Kind::busy;
  int lane = 0;  ///< 0: of no queue that all groups know by one number
  std::uint64_t number = 0;

  std::uint64_t packed() const {
    return number << 8 | static_cast<std::uint64_t>(lane) << 2 | static_cast<std::uint64_t>(kind);
  }
  static BetweenCalls from(std::uint64_t word) {
    return {static_cast<ThreadState::Kind>(word & 3), static_cast<int>(word >> 2 & 63), word >> 8};
  }
};

/// The circle that these holds, each from where the one before leads to, end in; empty if the last leads elsewhere. It
/// begins at its lowest rank, whatever the first hold was.
std::vector<Hold> circle_in(std::vector<Hold> holds);

/// Looks one after the other.
class CircleProof {
 public:
  /// Whether `circle`, which was read until `end`, is that of the look before and held when that one ended.
  bool is_proven(const std::vector<Hold>& circle, std::int64_t end);
  void forget() { seen_.clear(); }

 private:
  std::vector<Hold> seen_;
  std::int64_t seen_at_ = 0;
};

/// A wait of this rank as a hold: while the rank sleeps it tells the others what holds it, and looks for circles.
class WaitCircle {
 public:
  explicit WaitCircle(const BoardMemory& memory) : memory_(memory) {}

  /// A wait begins.
  void begin(BoardClock::time_point now);
  /// The rank is about to sleep for this peer, and tells it.
  void sleep(int peer);
  /// Tells, once in a nap, that the rank has found at `now` that it has to sleep on; and what its other threads do.
  void tell(const Wait& wait, BoardClock::time_point now);
  void wake() const {
    if (tells_) memory_.own_root_cell().awaited.store(0, std::memory_order_relaxed);
  }
  /// The text of the error, where ranks are proven to wait for each other; empty otherwise.
  std::string look(const Wait& wait);
  /// The time between two looks at whether the wait is over: a rank that looks twice for circles finds what this one
  /// has found in between.
  std::chrono::nanoseconds nap() const;

 private:
  const BoardMemory& memory_;
  BoardClock::time_point since_, next_look_;
  bool tells_ = false;
  int told_ = 0;  // the peer
  CircleProof proof_;
};

}  // namespace sherd::comm
