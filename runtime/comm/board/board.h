#pragma once
// The board: how ranks of one host meet. Each rank has a cell per lane where it writes what it does, peers read it.
// It has the fingerprint check, the barrier ("meeting"), the rounds, the poison and the reset.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/comm/board/board_memory.h"
#include "runtime/comm/board/exit_word.h"
#include "runtime/comm/board/watch.h"
#include "runtime/comm/group/fingerprint.h"

namespace sherd::comm {

/// When ranks came to a call, by their own clocks, which on one host are the same. Those of peers are known from the
/// first meeting on.
struct Arrivals {
  BoardClock::time_point own, first, last;
  BoardClock::time_point met_at;  // when the first meeting was complete

  void note(const std::atomic<std::int64_t>& arrived);
  /// How much later than the first of them this rank came.
  std::chrono::nanoseconds lateness() const { return own - first; }
};

/// CPUs that the ranks of the root may use at the same time, together; without those of ranks that have not come yet.
int num_cpus(const BoardMemory& memory);

/// One rank's handle to one lane of the board. One thread at a time calls it, except for what memory() and watch() let
/// any thread do. Calls that wait throw CommError when the group is poisoned, a peer is gone, or the deadline of the
/// call has passed; the rank that finds the reason first poisons the group, so all ranks report the same one in all
/// lanes.
class Board {
 public:
  Board(std::shared_ptr<std::byte> memory, BoardOptions options);

  const BoardMemory& memory() const { return memory_; }
  int rank() const { return memory_.rank(); }
  int size() const { return memory_.size(); }
  Watch& watch() { return watch_; }
  std::uint64_t epoch() const { return epoch_; }

  /// Names the call that the next enter() opens.
  Fingerprint open_call(CommOp op) const;
  /// Publishes the call, and that this rank came to it at `arrived`. Does not wait.
  void enter(const Fingerprint& call, BoardClock::time_point arrived);
  /// Waits until every rank has come to the same meeting; what a rank wrote before it is then visible to all. The
  /// first meeting of a call also compares the fingerprints.
  void meet() {
    come();
    meet_others();
  }
  /// meet() in two halves: what this rank wrote is visible to those who wait for it, and waiting for the others.
  void come();
  void meet_others();
  /// Whether meet_others() would not wait: all have come, or the group has failed.
  bool have_all_come() const {
    return memory_.is_poisoned() || memory_.have_all_come({&RankCell::meetings, meetings_});
  }
  /// Leaves the call between its halves: reset() then ends it instead of waiting for a thread. Returns the number of
  /// the call, for resume(), which another thread may call.
  std::uint64_t suspend() { return suspended_ = sequence_; }
  /// The caller is in the call again; false, and it must not touch the board, if a reset has ended it.
  bool resume(std::uint64_t call) { return suspended_.compare_exchange_strong(call, 0); }
  const Arrivals& arrivals() const { return arrivals_; }
  /// Sleeps until then; throws if the group is poisoned before.
  void sleep_until(BoardClock::time_point time);
  /// Ends the call, also after an error.
  void leave();
  /// Text of the call this rank is in, or was in last.
  std::string_view call() const { return call_.text(); }

  [[noreturn]] void raise_poison() const;
  /// Fails the group, because this rank has found that the present call cannot work.
  [[noreturn]] void fail_call(const std::string& reason) const;
  /// Collective, on lane 0 of the root: clears the poison. May be called again after it failed. Restarts meetings
  /// and rounds in this lane and in `others`, this rank's handles to the other lanes and subgroups; sequence
  /// numbers go on.
  void reset(std::span<Board* const> others = {});

  /// Notes bytes that this rank has written to move tensors in the present call.
  void count_copied(std::int64_t bytes) { copied_ += bytes; }
  /// Returns the bytes of the call, which ends or begins.
  std::int64_t take_copied() { return std::exchange(copied_, 0); }
  /// Number of staging rounds so far, equal on all ranks: it picks the window.
  std::uint64_t next_round() { return round_++; }

 private:
  friend class Mail;  // whose calls wait and fail as those of all ranks do

  void begin(const Fingerprint& call, BoardClock::time_point arrived);
  void tell_root() const;
  void await(const Wait& wait);
  void await_one(int peer, const Wait& wait);
  void check_peers(const Wait& wait) const;
  void give_up(const Wait& wait, const std::string& reason) const;
  void await_left(Board& other) const;
  void restart(std::uint64_t epoch);

  BoardMemory memory_;
  Watch watch_;
  ExitWord exit_word_;
  Fingerprint call_;
  Arrivals arrivals_;
  bool is_compared_ = false;
  std::atomic<std::uint64_t> suspended_{0};  // number of the call between its halves, 0 = none
  std::uint64_t sequence_ = 0, meetings_ = 0, round_ = 0;
  std::atomic<std::uint64_t> epoch_;  // resets completed; written by the thread that resets
  std::int64_t copied_ = 0;
};

}  // namespace sherd::comm
