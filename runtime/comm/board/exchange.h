#pragma once
// Moving the pieces of one call between ranks. Small calls go through staging windows in the board's memory; large
// calls read the peer's tensors in place where that is possible: between threads always, between processes if every
// rank has its tensors in its shared heap. Algorithms see no difference:
//
//   while (exchange.next()) { exchange.show(share); exchange.meet(); ... exchange.at(peer, piece) ... }
//   exchange.finish();
#include <cstddef>
#include <span>

#include "runtime/comm/board/board.h"
#include "runtime/comm/board/shares.h"
#include "runtime/tensor/no_copy.h"

namespace sherd::comm {

/// Launches up to this size are staged even where tensors could be read in place: that saves a meeting.
inline constexpr std::int64_t kSmallBytes = 16384;

/// Begins and ends the reading of the peers' tensors by a thread: they keep them alive meanwhile, even while they
/// unwind. Throws if the group is poisoned.
void begin_reading(const Board& board);
void end_reading(const Board& board);
/// Waits until no peer reads this rank's tensors; called while unwinding, when the group is poisoned.
void await_unread(const Board& board);

class Exchange : NoCopy {
 public:
  /// `slots` is how many shares a rank shows at once: 1, or shares.num_shares(). A rank exposes its share `own` only,
  /// or all shares if that is -1. `shares` must outlive this. Large calls between processes meet here.
  Exchange(Board& board, const Shares& shares, std::size_t slots, int own = -1);
  ~Exchange();

  /// Peers read tensors where they are (a strip's `readable`), not copies of `data`.
  bool is_in_place() const { return is_in_place_; }
  /// Opens the next round; false when nothing is left.
  bool next();
  std::span<const Piece> pieces(int share) const { return rounds_.pieces(static_cast<std::size_t>(share)); }
  /// Makes this rank's data of a share readable to the peers after the next meeting.
  void show(int share);
  /// Waits until all ranks have shown what they want to show.
  void meet();
  /// A peer's bytes of a piece, or this rank's; valid until the next meeting or round. Their type is type_at(piece).
  const std::byte* at(int rank, int share, const Piece& piece) const;
  DType type_at(const Piece& piece) const {
    return is_in_place_ ? shares_.strips()[piece.strip].readable_dtype : piece.dtype;
  }
  /// After this the peers no longer read this rank's tensors.
  void finish();

 private:
  bool agree_on_heaps(int own);

  Board& board_;
  const BoardMemory& memory_;
  const Shares& shares_;
  bool has_met_ = false;  // in the constructor
  std::uint64_t heap_round_ = 0;
  bool is_in_place_;
  std::size_t slots_;
  std::size_t slot_bytes_;
  Rounds rounds_;
  std::uint64_t round_ = 0;
  bool is_reading_ = false;
};

}  // namespace sherd::comm
