#pragma once
// A rank that waits looks at cells, decides whether to wait on, and words why not.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/comm/board/board_memory.h"
#include "runtime/comm/group/call_difference.h"
#include "runtime/comm/board/peer_states.h"
#include "runtime/comm/board/wait_circle.h"
#include "runtime/comm/group/wait_notice.h"

namespace sherd::comm {


/// The waits of one rank on one lane, one after the other. Ranks have their numbers in the group, messages those in the
/// root.
class Watch {
 public:
  explicit Watch(const BoardMemory& memory) : memory_(memory), states_(memory), circle_(memory) {}

  /// The limit on each wait. From any thread.
  void set_deadline(std::chrono::nanoseconds deadline) { deadline_ = deadline; }
  std::chrono::nanoseconds deadline() const { return deadline_; }

  /// A wait begins now.
  void begin();
  BoardClock::time_point since() const { return since_; }
  WaitCircle& circle() { return circle_; }
  /// The time to sleep before the next look.
  std::chrono::nanoseconds nap() const;
  /// Words why to give up the wait: a peer has ended; one is frozen, or the deadline has passed. Empty: it goes on.
  std::string departed_peer(const Wait& wait) const;
  /// The same of whoever cannot come to anything more, without a wait: a process that has died or ended with an error,
  /// or is frozen. From any thread.
  std::string lost_peer() const;
  std::string overdue(const Wait& wait) const;
  /// Tells the user, now and then, who is missing.
  void say_missing(const Wait& wait);
  /// Names the calls of the ranks, which have all come to call `number`, if they differ; empty if they do not.
  std::string disagreement(std::uint64_t number) const;

 private:
  std::string missing_ranks(const Wait& wait) const;
  std::string others_meanwhile(const Wait& wait) const;

  const BoardMemory& memory_;
  std::atomic<std::chrono::nanoseconds> deadline_{std::chrono::seconds(300)};
  BoardClock::time_point since_;
  NoticeClock notice_clock_;
  PeerStates states_;
  WaitCircle circle_;
};

}  // namespace sherd::comm
