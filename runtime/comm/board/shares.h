#pragma once
// How a grouped launch is split. Every tensor of the list is split into the same number of *shares* (one per rank, or
// one in all); a share is the concatenation of its shard of every tensor. A round takes the next few pieces of each
// share, as many as fit a staging slot. All ranks compute the same split from the same call, so pieces need no header.
//
//   tensor 0   | share 0 | share 1 | share 2 |       round 0: pieces of each share that fit
//   tensor 1   |share 0|share 1|share 2|             round 1: the next ones ...
//
// A tensor of several blocks has a run of each share in every block; each run is a piece.
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "runtime/tensor/dtype.h"

namespace sherd::comm {

/// One tensor of the launch on this rank. Peers that can read it in place do so at `readable`, the address that
/// element 0 of the full tensor has or would have: of a tensor with a source only this rank's shard is there, dense, as
/// if shares lay one after the other.
struct Strip {
  const std::byte* data;
  DType dtype;
  std::intptr_t readable;
  DType readable_dtype;
  std::int64_t blocks = 1;
  bool is_packed = false;  ///< what is readable is the source
};

/// Elements [first, first + count) of a strip; `offset` is their place in the staging slot, `packed` what `first` would
/// be if shares lay one after the other: the same, of one block.
struct Piece {
  std::size_t strip;
  DType dtype;
  std::int64_t first;
  std::int64_t count;
  std::size_t offset;
  std::int64_t packed;

  std::size_t byte_first() const { return static_cast<std::size_t>(first * byte_size(dtype)); }
  std::size_t byte_count() const { return static_cast<std::size_t>(count * byte_size(dtype)); }
};

class Shares {
 public:
  explicit Shares(int num_shares) : num_shares_(static_cast<std::size_t>(num_shares)) {}
  /// Share s owns counts[s] elements, equally many of each block; counts.size() is the number of shares.
  void add(const void* data, DType dtype, std::span<const std::int64_t> counts, std::int64_t blocks = 1);
  /// The same; `source` is the address of share `own` on this rank, of type `source_dtype`.
  void add(const void* data, DType dtype, std::span<const std::int64_t> counts, int own, const void* source,
           DType source_dtype, std::int64_t blocks = 1);
  /// Splits `count` elements evenly, the first shares taking one more.
  void add_even(const void* data, DType dtype, std::int64_t count);

  std::size_t num_shares() const { return num_shares_; }
  std::span<const Strip> strips() const { return strips_; }
  /// First element of a share in a strip, as if shares lay one after the other; share may be num_shares().
  std::int64_t start(std::size_t strip, std::size_t share) const { return starts_[strip * (num_shares_ + 1) + share]; }
  /// Bytes of all full tensors.
  std::int64_t num_bytes() const { return num_bytes_; }

 private:
  std::size_t num_shares_;
  std::int64_t num_bytes_ = 0;
  std::vector<Strip> strips_;
  std::vector<std::int64_t> starts_;  // [strip][share]
};

/// Walks the shares of a launch in rounds of at most `slot_bytes` per share. There is always a first round, even
/// when nothing is to move: ranks meet in it. `shares` must outlive this.
class Rounds {
 public:
  static constexpr std::size_t kUnlimited = std::numeric_limits<std::size_t>::max();
  static constexpr std::size_t kPieceAlignment = 16;

  Rounds(const Shares& shares, std::size_t slot_bytes);
  /// False when every share is used up.
  bool next();
  /// This round's pieces of a share, in order.
  std::span<const Piece> pieces(std::size_t share) const;

 private:
  struct Cursor {
    std::size_t strip = 0;
    std::int64_t done = 0;  // elements of this share in this strip that earlier pieces hold
  };
  void take(std::size_t share);
  Piece run_at(const Cursor& cursor, std::size_t share, std::size_t offset) const;
  void skip_finished(std::size_t share);

  const Shares& shares_;
  std::size_t slot_bytes_;
  bool started_ = false;
  std::vector<Cursor> cursors_;
  std::vector<Piece> pieces_;
  std::vector<std::size_t> ends_;  // pieces_ of share s end at ends_[s]
};

}  // namespace sherd::comm
