#pragma once
// Full gradients of a unit that wait for a later pass to be reduced (set_requires_gradient_sync): the sums of the
// micro-batches so far, in the type of the reduction.
//
//   held | p0 ............ full | p2 ............ full | ...     of the pieces that train
//
// They lie in the buffer that backward wrote them into, and later passes add to it in place. Where gradients are made
// in a narrower type than they are reduced in, the buffer is another one, to which each pass is added when it ends.
//
// As a tree (UnitPolicy::sums_in_tree) sums of 1, 2, 4, ... passes wait, each in a buffer of its own, as the digits of
// a binary counter: passes add up in the order in which as many ranks would (runtime/comm/group/sum_order.h).
//
//   passes  1: [0]      2: [0+1]      3: [0+1] [2]      4: [(0+1)+(2+3)]      5: [(0+1)+(2+3)] [4]
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "nn/parallel/shard/unit/unit_pieces.h"
#include "runtime/op/unit/unit.h"

namespace sherd::nn {

/// The unit with full gradients in the type that several of them are added in, that of the reduction where it is the
/// wider one; null if all are made in it.
UnitLayoutPtr layout_of_sums(const UnitLayout& unit);

class HeldGradients {
 public:
  /// Holds gradients of `unit`, which outlives this, with places for the sums of so many `passes`; of more they are
  /// made as passes reach them. Ranks that make them alike use the same names.
  HeldGradients(const UnitPieces& unit, bool is_tree, int passes);

  /// Whether a sum of this piece waits; and that sum.
  bool has(std::size_t piece) const { return gradient(piece).defined(); }
  const Tensor& gradient(std::size_t piece) const;
  /// All sums of it that wait: of a tree several, the earlier passes' last.
  std::vector<Tensor> gradients(std::size_t piece) const;
  /// Whether it is one of averages, or of terms of a Partial(sum); none: of zeros, which may become either.
  std::optional<ReduceKind> kind(std::size_t piece) const;
  /// All that is held, u8; undefined if nothing is. Of a tree the sum of the fewest passes.
  Tensor bytes() const;

  /// Whether a pass has a buffer of its own, in the gathered type.
  bool is_apart() const { return is_tree_ || wide_ != nullptr; }
  /// The unit with what is held in place of its full tensors.
  const UnitLayout& layout() const { return wide_ ? *wide_ : unit_.layout(); }

  /// One sum: where it lies in the buffer of held gradients, and in that of the pass.
  struct Member {
    std::size_t piece = 0;
    std::optional<ReduceKind> kind{};  ///< as of kind()
    std::int64_t held_offset = 0, pass_offset = 0;
  };
  /// Adds the full gradients of a pass, u8 `pass` of `layout`, to what is held; of one that is apart, in one launch. A
  /// first pass makes a buffer of `bytes`, or leaves its own.
  void add(std::span<const Member> members, const UnitLayout& layout, const Tensor& pass, std::int64_t bytes);
  /// Adds up what waits of a tree; else nothing is to be done.
  void join();
  /// How many sums may wait, as far as passes have come.
  int levels() const { return static_cast<int>(levels_.size()); }
  /// Where what is held of a piece lies in bytes().
  std::int64_t offset(std::size_t piece) const;
  /// Throws Error: a piece has no place there, because its parameter was thawed meanwhile.
  [[noreturn]] void refuse_thawed() const;

  void drop(std::size_t piece);
  void drop_all();

 private:
  // Slots, so that one captured step may leave what they hold to another: which pieces are held is known by them alone.
  // One of a piece's holds the sum, and tells the kind.
  struct Piece {
    std::unique_ptr<Slot> average, sum, zeros;
    std::array<Slot*, 3> slots() const { return {average.get(), sum.get(), zeros.get()}; }
    const Tensor& held() const;
    std::optional<ReduceKind> kind() const;
    void drop() const;
  };
  // What waits in one buffer: of a tree, at place k, sums of 2^k passes.
  struct Level {
    std::vector<Piece> pieces;
    Tensor bytes() const;
    std::vector<Member> members() const;
  };
  Level& level(std::size_t k);
  void carry();
  bool move_up(std::size_t from, std::size_t to);
  void put(Level& level, std::span<const Member> members, const Tensor& bytes);
  void add_up(Level& level, std::span<const Member> members, const UnitLayout& adding, const Tensor& terms,
              std::int64_t bytes);
  void keep(Level& level, const Member& member, Tensor sum);

  const UnitPieces& unit_;
  bool is_tree_;
  std::vector<Level> levels_;  // one, unless it is a tree
  UnitLayoutPtr wide_{};       // null: gradients are held in the type that they are made in
  UnitLayoutPtr local_{};      // from the gathered type to that of wide_, on this rank alone
  UnitLayoutPtr joined_{};     // from the type that is held to the same
};

}  // namespace sherd::nn
