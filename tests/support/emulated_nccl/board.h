#pragma once
// The memory that the ranks of one communicator share, threads or processes: an anonymous file, named by the unique id
// as a descriptor of the process that made it, so nothing is left behind by whoever dies.
//
//   RankPart r   who rank r is; what it has issued (on the host), posted and taken (on its device)
//   arena r      the bytes that its item under way sends
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "tests/support/emulated_nccl/call.h"

namespace sherd::cuda::nccl::fake {

inline constexpr int kMaxRanks = 16;
inline constexpr std::size_t kMaxCalls = 4096;                    ///< of one group, and messages under way of a pair
inline constexpr std::uint64_t kRing = 4096;                      ///< groups that a rank may be ahead of another
inline constexpr std::size_t kArenaBytes = std::size_t{1} << 30;  ///< sparse: what is not used takes no memory
inline constexpr int kSplits = 64;

struct Posted {
  Signature signature;
  std::uint64_t offset = 0;  ///< in the rank's arena
};

/// Numbers of items that a rank has issued, with their places in the host's order of all its communicators.
struct Issued {
  std::atomic<std::uint64_t> count;
  std::uint64_t order[kRing];
  void add(std::uint64_t place) {
    const std::uint64_t i = count.load(std::memory_order_relaxed);
    order[i % kRing] = place;
    count.store(i + 1, std::memory_order_release);
  }
  std::optional<std::uint64_t> place_of(std::uint64_t i) const {
    return count.load(std::memory_order_acquire) > i ? std::optional(order[i % kRing]) : std::nullopt;
  }
};

/// One direction of a pair: what the owner of the part sends to rank p, and what it has taken of p's.
struct PairPart {
  Issued sends, receives;
  std::atomic<std::uint64_t> sent, received;
  Posted messages[kMaxCalls];
};

/// What a rank says of its part in the n-th split.
struct SplitPart {
  std::atomic<std::uint64_t> number;  ///< n + 1 once color and key are there
  int color, key;
  std::atomic<std::uint64_t> named;  ///< n + 1 once `id` is: of the first rank of a color
  UniqueId id;
};

struct RankPart {
  std::atomic<std::uint32_t> joined, left;
  int world, version, device;
  std::uint64_t process, thread;
  char host[64];
  Issued groups;
  std::atomic<std::uint64_t> posted, taken;  ///< groups of collectives
  std::uint64_t num_calls;
  Posted calls[kMaxCalls];
  PairPart pairs[kMaxRanks];
  SplitPart splits[kSplits];
};

/// A unique id with memory of its own; `seed` decides the orders of sums.
UniqueId make_id(std::uint64_t seed);
/// The process that made the id keeps its memory until all ranks have come.
void forget_id(const UniqueId& id);

class Board {
 public:
  /// Throws std::runtime_error saying why there is no memory of that name.
  explicit Board(const UniqueId& id);
  ~Board();
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;

  RankPart& part(int rank) const;
  std::byte* arena(int rank) const;
  std::uint64_t seed() const;
  const UniqueId& id() const { return id_; }

 private:
  UniqueId id_;
  std::byte* memory_ = nullptr;
};

}  // namespace sherd::cuda::nccl::fake
