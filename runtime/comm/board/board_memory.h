#pragma once
// What the ranks of one host share: plain bytes that may be heap (ranks are threads) or a mapped segment (ranks are
// processes). Everything in it is a lock-free atomic, except staging windows, which meetings and mails order.
//
//   BoardHeader | lane 0: RankCell x size | lane 1: ... | per lane size x size Mails
//               | windows: per lane size x 3 x window_bytes
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "runtime/comm/board/life.h"
#include "runtime/comm/board/shared_text.h"
#include "runtime/comm/group/host_group.h"

namespace sherd::comm {

static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free,
              "atomics in shared memory must not need a lock");

/// A published call. Two per rank: a rank may enter call k + 1 while a slower one still compares call k.
struct CallNote {
  std::atomic<std::uint64_t> hash{0};
  std::atomic<std::int64_t> arrived{0};  // when the rank entered the call: nanoseconds of the host's steady clock
  SharedText<256> text;
};

enum class Activity : std::uint32_t { outside, in_call, in_pair_call, in_reset };
inline constexpr std::int32_t kStillRuns = -1;
enum class Presence : std::uint32_t { here, left, died };

/// One rank's cell of one lane: written by its owner, read by all. Only `bell` and `presence` are also written by
/// others. State of the rank as a whole (resets, presence, process) is in its cell of lane 0. For resets and bells
/// a subgroup uses the cells of the root that it was divided from.
struct alignas(64) RankCell {
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

  alignas(64) CallNote notes[2];
  SharedText<256> pair_call;  // the newest send or recv

  // In the root only: the call of a subgroup that this rank is in on this lane; for whom it sleeps there or here, as
  // 1 + number in the root, 0 = it does not, since when, and when it last found that it has to sleep on.
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
  const Activity activity = cell.activity.load(std::memory_order_relaxed);
  return activity == Activity::in_call || activity == Activity::in_pair_call;
}

/// The call that a cell's rank is in on that lane, or was in last.
inline std::string call_in(const RankCell& cell) {
  if (cell.activity.load(std::memory_order_relaxed) == Activity::in_pair_call) return cell.pair_call.load();
  return cell.notes[cell.calls.load(std::memory_order_acquire) % 2].text.load();
}

/// From one rank to another: how many pieces have been shown in the sender's third window, and how many were taken;
/// and when each of the two came to the present call and the one before, because a receiver may be one call ahead.
struct alignas(64) Mail {
  std::atomic<std::uint64_t> sent{0};   // written by the sender
  std::atomic<std::uint64_t> hash{0};   // of the sender's call
  std::atomic<std::uint64_t> taken{0};  // written by the receiver
  std::atomic<std::int64_t> sender_arrived[2]{}, receiver_arrived[2]{};
};

enum class Poison : std::uint32_t { none, being_written, set };

struct alignas(64) BoardHeader {
  std::atomic<std::uint64_t> cpus[16]{};  // a bit for each CPU that a rank may use
  std::atomic<Poison> poison{Poison::none};
  SharedText<2048> reason;
};

}  // namespace sherd::comm
