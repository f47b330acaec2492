#pragma once
// What the ranks of one host share: plain bytes that may be heap (ranks are threads) or a mapped segment (ranks are
// processes). Everything in it is a lock-free atomic, except staging windows, which meetings and mails order.
//
//   BoardHeader | channel 0: RankCell x size | channel 1: ... | per channel size x size Mails
//               | windows: per channel size x 3 x window_bytes
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "runtime/comm/group/host_group.h"

namespace sherd::comm {

static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free,
              "atomics in shared memory must not need a lock");

/// Text that one rank writes while others may read. A reader that comes in the middle sees a mixture of both
/// texts, never undefined behaviour.
template <std::size_t kBytes>
class SharedText {
 public:
  void store(std::string_view text) {
    const std::size_t size = std::min(text.size(), kBytes);
    for (std::size_t at = 0; at < size; at += 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, text.data() + at, std::min<std::size_t>(8, size - at));
      words_[at / 8].store(word, std::memory_order_relaxed);
    }
    size_.store(static_cast<std::uint32_t>(size), std::memory_order_relaxed);
  }
  std::string load() const {
    std::string text(std::min<std::size_t>(size_.load(std::memory_order_relaxed), kBytes), '\0');
    for (std::size_t at = 0; at < text.size(); at += 8) {
      const std::uint64_t word = words_[at / 8].load(std::memory_order_relaxed);
      std::memcpy(text.data() + at, &word, std::min<std::size_t>(8, text.size() - at));
    }
    return text;
  }

 private:
  static_assert(kBytes % 8 == 0);
  std::atomic<std::uint32_t> size_{0};
  std::array<std::atomic<std::uint64_t>, kBytes / 8> words_{};
};

/// A published call. Two per rank: a rank may enter call k + 1 while a slower one still compares call k.
struct CallNote {
  std::atomic<std::uint64_t> hash{0};
  std::atomic<std::int64_t> arrived{0};  // when the rank entered the call: nanoseconds of the host's steady clock
  SharedText<256> text;
};

enum class Activity : std::uint32_t { outside, in_call, in_pair_call, in_reset };
enum class Presence : std::uint32_t { here, left, died };

/// One rank's cell of one channel: written by its owner, read by all. Only `bell` and `presence` are also written by
/// others. State of the rank as a whole (resets, presence, process) is in its cell of channel 0. For resets and bells
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

  alignas(64) std::atomic<std::uint32_t> bell{0};  // futex: rung when what this rank waits for has changed
  std::atomic<std::uint32_t> waiting_for{0};       // 1 + rank of the awaited peer, 0 = not asleep

  alignas(64) CallNote notes[2];
  SharedText<256> pair_call;  // the newest send or recv

  // In the root only: the call of a subgroup that this rank is in on this channel.
  std::atomic<bool> is_in_subgroup{false};
  SharedText<256> subgroup_call;
};

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
