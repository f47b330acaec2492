#pragma once
// The board: how ranks of one host meet. Each rank has a cell per lane where it writes what it does, peers read it.
// On it stand the fingerprint check, the barrier ("meeting"), the poison, the deadline and the reports of
// missing ranks.
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/comm/board/board_memory.h"
#include "runtime/comm/board/exit_word.h"
#include "runtime/comm/board/life.h"
#include "runtime/comm/board/wait_circle.h"
#include "runtime/comm/group/fingerprint.h"
#include "runtime/comm/group/wait_notice.h"

namespace sherd::comm {

/// The group that a subgroup was divided from, directly or through others. All of them are poisoned and reset
/// together.
struct BoardRoot {
  std::shared_ptr<std::byte> memory;
  int size = 1;
  std::vector<int> ranks;  // for each rank here its number in the root; messages name these
};

/// Where the ranks of a new subgroup get the memory of its board: one rank offers it, then the others take it. Neither
/// call waits.
class BoardSource {
 public:
  virtual ~BoardSource() = default;
  /// A formatted board for `size` ranks, which `peers` (numbers in the root) can take.
  virtual std::shared_ptr<std::byte> offer(const std::string& tag, std::span<const int> peers, int size,
                                           std::size_t window_bytes) = 0;
  /// The board that was offered under this tag.
  virtual std::shared_ptr<std::byte> take(const std::string& tag, int size, std::size_t window_bytes) = 0;
};

struct BoardOptions {
  int rank = 0;
  int size = 1;
  int lane = 0;
  std::size_t window_bytes = 0;  // multiple of 64; each rank has three windows per lane
  bool is_one_process = false;   // ranks can read each other's tensors in place
  std::byte* heaps = nullptr;    // processes: the shared heaps of the root's ranks, in rank order, mapped by all
  std::size_t heap_bytes = 0;    // of one rank
  /// Ranks whose process has ended; empty for threads, which cannot die alone.
  std::function<bool(int rank)> has_died;
  std::shared_ptr<BoardSource> source{};    // none for one rank
  std::shared_ptr<const BoardRoot> root{};  // of a subgroup
  std::uint64_t epoch = 0;                  // of a subgroup: resets that the root has completed
  WaitNotice notice{};                      // subgroups and lanes have the same
  /// A rank without a sign of life is waited for so long, or as long as the deadline if that is shorter; 0: ranks give
  /// none, as threads do not.
  std::chrono::nanoseconds silence{0};
  /// Between two looks of a rank that waits whether ranks wait for each other; 0: none looks.
  std::chrono::nanoseconds look = std::chrono::seconds(2);
};

/// What messages add where ranks make the same call with other sizes.
inline constexpr std::string_view kUnlikeSizes =
    "; their parts of a tensor have other sizes: from_local() takes them to be alike unless it is given the `shape`, "
    "or a layout that lists them (Spec::with_rows())";

/// One rank's handle to one lane of the board. One thread at a time calls it, except for poison() and
/// set_deadline(). Calls that wait throw CommError when the group is poisoned, a peer is gone, or the deadline of the
/// call has passed; the rank that finds the reason first poisons the group, so all ranks report the same one in all
/// lanes.
class Board {
 public:
  using Clock = std::chrono::steady_clock;
  static std::int64_t nanoseconds(Clock::time_point time) {
    return time.time_since_epoch() / std::chrono::nanoseconds(1);
  }
  static constexpr int kNumLanes = HostGroup::kNumLanes;

  static std::size_t memory_bytes(int size, std::size_t window_bytes);
  /// Makes an empty board in zeroed, 64-byte aligned memory; done once, before any rank's handle.
  static void format(std::byte* memory, int size);
  const std::shared_ptr<std::byte>& memory() const { return memory_; }
  /// Where a rank of the root gives its signs of life.
  static LifeCell& life_cell(std::byte* memory, int rank);
  /// Private zeroed memory for ranks of one process.
  static std::shared_ptr<std::byte> heap_memory(int size, std::size_t window_bytes);

  Board(std::shared_ptr<std::byte> memory, BoardOptions options);
  /// In lane 0: tells the peers that this rank has left for good.
  ~Board();
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  int rank() const { return options_.rank; }
  int size() const { return options_.size; }
  int lane() const { return options_.lane; }
  const BoardOptions& options() const { return options_; }
  /// This rank's, or a peer's, number in the group that this one was divided from.
  int root_rank() const { return root_rank(rank()); }
  int root_rank(int rank) const { return options_.root ? options_.root->ranks[static_cast<std::size_t>(rank)] : rank; }
  std::uint64_t epoch() const { return epoch_; }
  /// CPUs that the ranks of the root may use at the same time, together; without those of ranks that have not come yet.
  int num_cpus() const;
  void set_deadline(std::chrono::nanoseconds deadline) { deadline_ = deadline; }
  std::chrono::nanoseconds deadline() const { return deadline_; }

  /// Number of the call that the next enter() opens.
  std::int64_t next_sequence() const { return static_cast<std::int64_t>(sequence_) + 1; }
  Fingerprint open_call(CommOp op) const { return Fingerprint(op, next_sequence(), lane(), members_); }
  /// Publishes the call, and that this rank came to it at `arrived`. Does not wait.
  void enter(const Fingerprint& call, Clock::time_point arrived);
  /// Waits until every rank has come to the same meeting; what a rank wrote before it is then visible to all. The
  /// first meeting of a call also compares the fingerprints.
  void meet();
  /// meet() in two halves: what this rank wrote is visible to those who wait for it, and waiting for the others.
  void come();
  void meet_others();
  /// Whether meet_others() would not wait: all have come, or the group has failed.
  bool have_all_come() const;
  /// Between the halves no thread of this rank is in the call: reset() does not wait for one, it ends the call. Returns
  /// the number of the call, for resume(), which another thread may call.
  std::uint64_t suspend() { return suspended_ = sequence_; }
  /// The caller is in the call again; false, and it must not touch the board, if a reset has ended it.
  bool resume(std::uint64_t call) { return suspended_.compare_exchange_strong(call, 0); }
  /// When the first meeting of the present call was complete.
  Clock::time_point met_at() const { return met_at_; }
  /// When the last of its ranks came to the present call, known from its first meeting on: a rank that came earlier
  /// has waited until then. Read off the ranks' own clocks, which on one host are the same.
  Clock::time_point last_arrival() const { return last_arrival_; }
  /// How much later than the first of them this rank came.
  std::chrono::nanoseconds lateness() const { return own_arrival_ - first_arrival_; }
  /// Sleeps until then; throws if the group is poisoned before.
  void sleep_until(Clock::time_point time);
  /// Ends the call, also after an error.
  void leave();
  /// Text of the call this rank is in, or was in last.
  std::string_view call() const { return call_.text(); }

  /// Tells the peers of a root that this process ends now, with this status, unless it was forked off its rank.
  void tell_exit(int status) const;

  /// Marks the group as failed, wakes all ranks, keeps the first reason. From any thread.
  void poison(std::string_view reason);
  bool is_poisoned() const;
  [[noreturn]] void raise_poison() const;
  /// Collective, on lane 0 of the root: clears the poison. May be called again after it failed. Restarts meetings
  /// and rounds in this lane and in `others`, this rank's handles to the other lanes and subgroups; sequence
  /// numbers go on.
  void reset(std::span<Board* const> others = {});

  /// Notes bytes that this rank has written to move tensors in the present call.
  void count_copied(std::int64_t bytes) { copied_ += bytes; }
  /// Those of the call, which ends or begins.
  std::int64_t take_copied() { return std::exchange(copied_, 0); }

  /// Number of staging rounds so far, equal on all ranks: it picks the window.
  std::uint64_t next_round() { return round_++; }
  std::byte* window(int rank, std::uint64_t round) const;
  std::byte* heap(int rank) const {
    return options_.heaps + static_cast<std::size_t>(root_rank(rank)) * options_.heap_bytes;
  }

  /// Calls between two ranks go piece by piece through the sender's third window. No other rank is waited for.
  Fingerprint open_pair_call(CommOp op, int peer) const;
  void enter_pair_call(const Fingerprint& call, CommOp op, int peer, Clock::time_point arrived);
  std::byte* mail_window(int sender) const { return window_at(sender, 2); }
  /// Tells `to` that the next piece is in the own mail window, and waits until it was taken.
  void post_piece(int to);
  /// Waits for the next piece of `from`; the first of a call also compares the calls.
  void await_piece(int from);
  void take_piece(int from);
  /// Fails the group, because this rank has found that the present call cannot work.
  [[noreturn]] void fail_call(const std::string& reason);

  /// Threads only: shows peers where this call's tensors are, and reads theirs after the meeting.
  void show_strips(const void* strips);
  const void* strips(int rank) const;
  /// Between these two the peers keep their tensors alive, even while they unwind. Throws if the group is poisoned.
  void begin_reading();
  void end_reading();
  /// Waits until no peer reads this rank's tensors; called while unwinding, when the group is poisoned.
  void await_unread() const;

 private:
  using Counter = std::atomic<std::uint64_t> RankCell::*;
  // What is waited for: that a counter of every peer's cell, or one mail of one peer, has come as far as `target`.
  struct Wait {
    Counter counter;
    std::uint64_t target;
    const std::atomic<std::uint64_t>* mail = nullptr;
    int mail_peer = -1;
  };

  std::byte* root_memory() const { return options_.root ? options_.root->memory.get() : memory_.get(); }
  int root_size() const { return options_.root ? options_.root->size : options_.size; }
  BoardHeader& header() const { return *reinterpret_cast<BoardHeader*>(root_memory()); }
  RankCell& root_cell(int rank, int lane) const;
  RankCell& root_head(int rank) const { return root_cell(rank, 0); }
  RankCell& cell(int rank, int lane) const;
  RankCell& cell(int rank) const { return cell(rank, options_.lane); }
  RankCell& own() const { return cell(options_.rank); }
  RankCell& head(int rank) const { return cell(rank, 0); }
  void advance(Counter counter, std::uint64_t value);
  void ring(int rank, int lane) const;
  void tell_root();
  void ring_all() const;
  void await_left(Board& other);
  void restart(std::uint64_t epoch);
  void check_usable(const Fingerprint& call);
  std::byte* window_at(int rank, std::size_t index) const;
  Mail& mail(int from, int to) const;
  void count_mail(std::atomic<std::uint64_t>& counter, std::uint64_t value, int peer);
  bool has_come(const Wait& wait, int peer) const;
  bool have_all_come(const Wait& wait) const;
  void await(const Wait& wait);
  void await_one(int peer, const Wait& wait);
  void add_cpus();
  bool may_spin() const;
  void check_peers(const Wait& wait);
  void check_deadlines(const Wait& wait);
  void check_presence(const Wait& wait);
  void say_missing(const Wait& wait);
  std::string missing_ranks(const Wait& wait) const;
  std::string casualty(int rank) const;
  void tell_departure(std::int32_t exit_status) const;
  std::string departure(int rank) const;
  void compare_calls();
  void note_arrival(const std::atomic<std::int64_t>& arrived);
  std::string call_of(int rank, int lane) const;
  std::string describe(int rank) const;
  std::string describe_call(int rank, int lane) const;
  std::string other_calls(int rank) const;
  std::string own_activity(const Wait& wait) const;
  // In these, ranks have their numbers in the root.
  /// Where a thread sleeps, and for whom.
  struct Sleep {
    Place awaited;
    std::chrono::nanoseconds since;
  };
  RankCell& at_root(int root, int lane) const;
  LifeCell& life(int root) const { return at_root(root, 0).life; }
  Silence silence() const;
  std::chrono::nanoseconds patience_with(int root) const;
  std::optional<std::chrono::nanoseconds> frozen_for(int root) const;
  std::optional<Sleep> sleep_in(Place place) const;
  std::optional<Sleep> sleep_that_holds_up(Place place) const;
  std::string state_of(Place place) const;
  std::string activity_of(int root) const;
  /// Who waits for whom, from one rank on.
  struct Chain {
    std::vector<Place> places;
    std::vector<int> circle;                 ///< the ranks that wait for each other, if it does not end
    std::chrono::nanoseconds last_begin{0};  ///< of its waits
  };
  Chain chain_from(int root) const;
  std::string end_of_chain(int root) const;
  std::chrono::nanoseconds nap() const;
  void tell_between() const;
  std::optional<Hold> hold_of(Place place) const;
  bool leads_back_here(Place place) const;
  int peer_to_tell_of(const Wait& wait, int told) const;
  bool tells_of_its_sleep() const;
  std::vector<Hold> read_circle() const;
  std::string call_at(Place place) const;
  void look_for_circle(const Wait& wait);
  std::string others_meanwhile(const Wait& wait) const;
  [[noreturn]] void fail_group(const Wait& wait, const std::string& reason);

  std::shared_ptr<std::byte> memory_;
  BoardOptions options_;
  std::string members_;  // of a subgroup: "ranks 1,3", as in its calls
  const int exceptions_at_start_;
  std::atomic<std::chrono::nanoseconds> deadline_{std::chrono::seconds(300)};
  Clock::time_point waiting_since_;  // start of the present wait
  NoticeClock notice_clock_;         // of the present wait
  Clock::time_point next_look_;      // of the present wait
  CircleProof circle_;               // of the present wait
  std::int64_t lost_before_ = 0;     // by this process, before the present wait
  Clock::time_point met_at_;
  Clock::time_point last_arrival_, first_arrival_, own_arrival_;

  Fingerprint call_;
  bool is_compared_ = false;
  std::atomic<std::uint64_t> suspended_{0};  // number of the call between its halves, 0 = none
  std::uint64_t sequence_ = 0;
  std::uint64_t meetings_ = 0;
  std::uint64_t round_ = 0;
  std::atomic<std::uint64_t> epoch_ = 0;  // resets completed; written by the thread that resets
  std::int64_t copied_ = 0;

  // Calls and pieces exchanged with one peer, in one direction.
  struct MailCount {
    std::uint64_t calls = 0, pieces = 0;
  };
  std::vector<MailCount> sends_, receives_;  // by peer
  bool is_first_piece_ = false;              // of a send or recv: the peer's arrival is not known yet
  std::optional<ExitWord> exit_word_;        // of the root of processes
};

}  // namespace sherd::comm
