#pragma once
// What the ranks of one host share: plain bytes that may be heap (ranks are threads) or a mapped segment (ranks are
// processes). Everything in it is a lock-free atomic, except staging windows, which meetings and mails order.
//
//   BoardHeader | lane 0: RankCell x size | lane 1: ... | per lane size x size MailCells
//               | windows: per lane size x 3 x window_bytes
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/comm/board/life.h"
#include "runtime/comm/board/shared_text.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/comm/group/wait_notice.h"

namespace sherd::comm {

static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free,
              "atomics in shared memory must not need a lock");

using BoardClock = std::chrono::steady_clock;
inline std::int64_t to_nanoseconds(BoardClock::time_point time) {
  return time.time_since_epoch() / std::chrono::nanoseconds(1);
}

inline constexpr std::int32_t kStillRuns = -1;

/// One rank's cell of one lane: written by its owner, read by all. Only `bell` and `presence` are also written by
/// others. State of the rank as a whole (resets, presence, process) is in its cell of lane 0. For resets and bells
/// a subgroup uses the cells of the root that it was divided from.
struct alignas(64) RankCell {
  enum class Activity : std::uint32_t { outside, in_call, in_pair_call, in_reset };
  enum class Presence : std::uint32_t { here, left, died };
  /// A published call. Two per rank: a rank may enter call k + 1 while a slower one still compares call k.
  struct Note {
    std::atomic<std::uint64_t> hash{0};
    std::atomic<std::int64_t> arrived{0};  // when the rank entered the call: nanoseconds of the host's steady clock
    SharedText<256> text;
  };

  std::atomic<std::uint64_t> meetings{0};     // meetings this rank has come to; reset k continues at k << 32
  std::atomic<std::uint64_t> calls{0};        // sequence number of the newest published call
  std::atomic<std::uint64_t> resets{0};       // resets entered
  std::atomic<std::uint64_t> resets_done{0};  // resets in which this rank's cells are ready again
  std::atomic<const void*> strips{nullptr};   // threads only: where this rank's tensors are
  std::atomic<std::uint32_t> is_reading{0};   // threads only: peers must keep their tensors alive
  std::atomic<Activity> activity{Activity::outside};
  std::atomic<Presence> presence{Presence::here};
  std::atomic<std::int32_t> process{0};  // process id, 0 for threads
  // When a rank has left: the status with which its process has ended, kStillRuns if it only left, and how many
  // steps it has begun, 0 if it counts none.
  std::atomic<std::int32_t> exit_status{kStillRuns};
  std::atomic<std::int64_t> steps{0};

  alignas(64) std::atomic<std::uint32_t> bell{0};  // futex: rung when what this rank waits for has changed
  std::atomic<std::uint32_t> waiting_for{0};       // 1 + rank of the awaited peer, 0 = not asleep

  alignas(64) Note notes[2];
  SharedText<256> pair_call;  // the newest send or recv

  // Used in the root only: the call of a subgroup that this rank is in on this lane; for whom it sleeps there or here,
  // as 1 + number in the root, 0 = it does not, since when, and when it last found that it has to sleep on.
  std::atomic<bool> is_in_subgroup{false};
  SharedText<256> subgroup_call;
  std::atomic<std::uint32_t> awaited{0};
  std::atomic<std::int64_t> awaited_since{0};
  std::atomic<std::int64_t> awaited_until{0};
  std::atomic<std::int32_t> teller{0};  // the thread that tells it, by its system's number
  // There too: what the thread that comes to the calls of this lane does between them (wait_circle.h), and when
  // another thread of the rank, which sleeps in a call, has found it so.
  std::atomic<std::uint64_t> between{0};
  std::atomic<std::int64_t> between_until{0};
  LifeCell life;  // in lane 0 of the root
};

inline bool is_in_call(const RankCell& cell) {
  const RankCell::Activity activity = cell.activity.load(std::memory_order_relaxed);
  return activity == RankCell::Activity::in_call || activity == RankCell::Activity::in_pair_call;
}

/// The call that a cell's rank is in on that lane, or was in last.
inline std::string call_in(const RankCell& cell) {
  if (cell.activity.load(std::memory_order_relaxed) == RankCell::Activity::in_pair_call) return cell.pair_call.load();
  return cell.notes[cell.calls.load(std::memory_order_acquire) % 2].text.load();
}

/// Mail from one rank to another: how many pieces have been shown in the sender's third window, and how many were
/// taken; and when each of the two came to the present call and the one before, because a receiver may be one call
/// ahead. The calls of a side are counted by that side, for itself.
struct alignas(64) MailCell {
  std::atomic<std::uint64_t> sent{0};   // written by the sender
  std::atomic<std::uint64_t> hash{0};   // of the sender's call
  std::atomic<std::uint64_t> taken{0};  // written by the receiver
  std::atomic<std::int64_t> sender_arrived[2]{}, receiver_arrived[2]{};
  std::atomic<std::uint32_t> sends{0}, receives{0};
};

struct alignas(64) BoardHeader {
  enum class Poison : std::uint32_t { none, being_written, set };

  std::atomic<std::uint64_t> cpus[16]{};  // a bit for each CPU that a rank may use
  std::atomic<Poison> poison{Poison::none};
  SharedText<2048> reason;
};

/// A condition to wait for: a counter in every peer's cell, or one mail of one peer, has come as far as `target`.
struct Wait {
  std::atomic<std::uint64_t> RankCell::* counter;
  std::uint64_t target;
  const std::atomic<std::uint64_t>* mail = nullptr;
  int mail_peer = -1;

  /// False in reset().
  bool is_in_call() const { return counter == &RankCell::meetings; }
};

/// Gives the ranks of a new subgroup the memory of its board: one rank offers it, then the others take it. Neither call
/// waits.
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
  /// The group that a subgroup was divided from, directly or through others. All of them are poisoned and reset
  /// together.
  struct Root {
    std::shared_ptr<std::byte> memory;
    int size = 1;
    std::vector<int> ranks;  // for each rank here its number in the root; messages name these
    std::string members;     // "ranks 1,3", as in the subgroup's calls
  };

  int rank = 0;
  int size = 1;
  int lane = 0;
  std::size_t window_bytes = 0;  // multiple of 64; each rank has three windows per lane
  bool is_one_process = false;   // ranks can read each other's tensors in place
  std::byte* heaps = nullptr;    // processes: the shared heaps of the root's ranks, in rank order, mapped by all
  std::size_t heap_bytes = 0;    // of one rank
  /// Ranks whose process has ended; empty for threads, which cannot die alone.
  std::function<bool(int rank)> has_died;
  std::shared_ptr<BoardSource> source{};  // none for one rank
  std::shared_ptr<const Root> root{};     // of a subgroup
  std::uint64_t epoch = 0;                // of a subgroup: resets that the root has completed
  WaitNotice notice{};                    // subgroups and lanes have the same
  /// A rank without a sign of life is waited for so long, or as long as the deadline if that is shorter; 0: ranks give
  /// none, as threads do not.
  std::chrono::nanoseconds silence{0};
  /// A rank that waits looks this often whether ranks wait for each other; 0: none looks.
  std::chrono::nanoseconds look = std::chrono::seconds(2);
};

/// A board's memory as one rank finds it on one lane: who sits where, which cell is whose, the bells and the poison.
/// Cells of the root are those of this board where it is one. From any thread.
class BoardMemory {
 public:
  static constexpr int kNumLanes = HostGroup::kNumLanes;
  static std::size_t num_bytes(int size, std::size_t window_bytes);
  /// Makes an empty board in zeroed, 64-byte aligned memory; done once, before any rank's handle.
  static void format(std::byte* bytes, int size);
  /// Private zeroed memory for ranks of one process.
  static std::shared_ptr<std::byte> on_heap(int size, std::size_t window_bytes);
  /// Finds the cell in which a rank of the root gives its signs of life.
  static LifeCell& life_cell(std::byte* root, int rank) { return cells_of(root)[rank].life; }  // lane 0 comes first

  const std::shared_ptr<std::byte> bytes;
  const BoardOptions options;

  BoardMemory(std::shared_ptr<std::byte> of_board, BoardOptions of_rank)
      : bytes(std::move(of_board)), options(std::move(of_rank)) {}

  int rank() const { return options.rank; }
  int size() const { return options.size; }
  int lane() const { return options.lane; }
  /// This rank's, or a peer's, number in the root.
  int root_rank() const { return root_rank(rank()); }
  int root_rank(int rank) const { return options.root ? options.root->ranks[static_cast<std::size_t>(rank)] : rank; }
  int root_size() const { return options.root ? options.root->size : options.size; }
  std::string_view members() const { return options.root ? options.root->members : std::string_view(); }

  RankCell& cell(int rank, int lane) const { return cells_of(bytes.get())[lane * size() + rank]; }
  RankCell& cell(int rank) const { return cell(rank, lane()); }
  RankCell& own() const { return cell(rank()); }
  /// The cell that is of the rank as a whole.
  RankCell& head(int rank) const { return cell(rank, 0); }
  /// The cell of rank `root` of the root.
  RankCell& at_root(int root, int lane) const { return cells_of(root_bytes())[lane * root_size() + root]; }
  RankCell& root_cell(int rank, int lane) const { return at_root(root_rank(rank), lane); }
  RankCell& root_head(int rank) const { return root_cell(rank, 0); }
  RankCell& own_root_cell() const { return root_cell(rank(), lane()); }
  LifeCell& life(int root) const { return at_root(root, 0).life; }
  MailCell& mail(int from, int to) const;
  BoardHeader& header() const { return *reinterpret_cast<BoardHeader*>(root_bytes()); }
  /// One of the two staging windows, which take turns.
  std::byte* window(int rank, std::uint64_t round) const { return window_at(rank, round % 2); }
  std::byte* mail_window(int sender) const { return window_at(sender, 2); }
  std::byte* heap(int rank) const {
    return options.heaps + static_cast<std::size_t>(root_rank(rank)) * options.heap_bytes;
  }

  bool has_come(const Wait& wait, int peer) const {
    if (wait.mail) return peer != wait.mail_peer || wait.mail->load(std::memory_order_seq_cst) >= wait.target;
    return (cell(peer).*wait.counter).load(std::memory_order_seq_cst) >= wait.target;
  }
  bool have_all_come(const Wait& wait) const {
    for (int peer = 0; peer < size(); ++peer)
      if (!has_come(wait, peer)) return false;
    return true;
  }

  /// Sleeps until this rank's bell is no longer `seen`, or for `nap`.
  void sleep(std::uint32_t seen, std::chrono::nanoseconds nap) const;
  /// Wakes a peer if it sleeps for this rank, which has written what it waits for.
  void ring(int peer) const;
  /// Wakes all ranks of the root, because no rank here knows all subgroups in which they may wait.
  void ring_all() const;

  /// Marks the group as failed, wakes all ranks, keeps the first reason.
  void poison(std::string_view reason) const;
  bool is_poisoned() const { return header().poison.load() != BoardHeader::Poison::none; }
  /// Tells why the group has failed.
  std::string poison_reason() const;

 private:
  static RankCell* cells_of(std::byte* board) { return reinterpret_cast<RankCell*>(board + sizeof(BoardHeader)); }
  std::byte* window_at(int rank, std::size_t index) const;
  std::byte* root_bytes() const { return options.root ? options.root->memory.get() : bytes.get(); }
};

}  // namespace sherd::comm
