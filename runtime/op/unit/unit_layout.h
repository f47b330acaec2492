#pragma once
// A unit: parameters that are gathered, released and reduced together. Its layout is data: which tensors lie where in
// its two buffers, in which types they travel, and by which groups of ranks.
//
//   shards  | piece 0, this rank's rows | piece 1, ... |     updated by the optimizer; each piece dense
//   full    | piece 0 ............ full | piece 1, ... |     while modules compute
//
// Layouts chain: what is full in one may be the shards of the next, and the two buffers of a layout may be one:
//
//   in place  | piece 0, .. rows of this rank .. | piece 1, ... |
//
// Rows of unit.h carry a reference to a layout, which is all that they know of a unit: any program, on any rank, can be
// read, priced and moved from its text and the layouts that it names.
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/op/attrs/attr_list.h"

namespace sherd {

/// One tensor of a unit. Offsets are bytes from the start of a buffer.
struct UnitPiece {
  Shape shape;                    ///< full, of this rank's local tensor; at least one dim
  DType dtype = DType::f32;       ///< of the shard, and of its gradient unless grad_dtype is set
  DType full_dtype = DType::f32;  ///< of the full tensor and of its gradient
  DType wire = DType::f32;        ///< gradients are rounded to it before they are summed, and once more after
  std::int64_t shard_offset = 0;
  std::int64_t full_offset = 0;
  int dim = 0;                        ///< the one that is sharded
  std::vector<std::int64_t> rows{};   ///< of `dim`, per shard; empty: the chunk rule (comm/group/chunks.h)
  std::string name{};                 ///< for messages: the parameter's path below the unit
  std::optional<DType> grad_dtype{};  ///< of the shard's gradient, where that is not the shard's

  DType gradient_dtype() const { return grad_dtype.value_or(dtype); }

  static constexpr AttrField fields[] = {attr<&UnitPiece::shape>("shape"),
                                         attr<&UnitPiece::dtype>("dtype"),
                                         attr<&UnitPiece::full_dtype>("full_dtype"),
                                         attr<&UnitPiece::wire>("wire"),
                                         attr<&UnitPiece::shard_offset>("shard_offset").local(),
                                         attr<&UnitPiece::full_offset>("full_offset").local(),
                                         attr<&UnitPiece::dim>("dim").optional(),
                                         attr<&UnitPiece::rows>("rows").local().optional(),
                                         attr<&UnitPiece::name>("name").optional(),
                                         attr<&UnitPiece::grad_dtype>("grad_dtype").optional()};
};

struct UnitLayout;
/// A reference to an interned layout, which keeps it: layouts end with their last reference.
using UnitLayoutPtr = std::shared_ptr<const UnitLayout>;

/// Interned: equal layouts that are there at the same time are one object, so comparing is comparing pointers.
struct UnitLayout {
  std::string name;            ///< for messages, traces and counts: the path of the module
  std::string shard_axis{};    ///< name of the group whose ranks hold the shards; empty: there is one shard
  std::string replica_axis{};  ///< name of the group whose ranks hold this shard too; empty: no other does
  int shards = 1, shard = 0;   ///< how many there are, and which is this rank's
  int replicas = 1;
  std::int64_t shard_bytes = 0, full_bytes = 0;  ///< of the buffers
  bool in_place = false;  ///< they are one buffer: this rank's shards lie at their place in the full tensors
  std::vector<UnitPiece> pieces{};
  /// How an interned layout finds who keeps it. A copy of one is another layout, which nobody keeps.
  class Self {
   public:
    Self() = default;
    Self(const Self&) {}
    Self& operator=(const Self&) { return *this; }

   private:
    friend struct UnitLayout;
    std::weak_ptr<const UnitLayout> owners_;
  };
  Self self{};

  /// The layout of this content, known by its label on this rank as long as a copy of the result is there. Error as
  /// check_sound().
  static UnitLayoutPtr intern(UnitLayout layout);
  /// The same without a label, for what a text brings: the labels of this rank's own units stay what they would be.
  static UnitLayoutPtr of_content(UnitLayout layout);
  /// How many there are in this process.
  static std::size_t count_interned();
  /// Keeps this layout, without its label. Error as check_interned().
  UnitLayoutPtr shared() const;
  /// Error naming the unit if this is a copy of an interned layout, which rows do not take.
  void check_interned() const;
  /// Error naming the unit and the piece if pieces leave their buffers or rows do not add up.
  void check_sound() const;

  const UnitPiece& piece(int index) const { return pieces[static_cast<std::size_t>(index)]; }
  /// Elements of a piece on a shard, on this rank's, on each.
  std::int64_t count(const UnitPiece& p, int of_shard) const;
  std::int64_t count_here(const UnitPiece& p) const { return count(p, shard); }
  std::vector<std::int64_t> counts(const UnitPiece& p) const;
  /// Blocks of the full piece, each with rows of every shard: one for each index of the dims before the sharded one.
  static std::int64_t blocks(const UnitPiece& p);
  /// All of it as text; parse_unit_layout() reads it.
  std::string print() const;

  static constexpr AttrField fields[] = {attr<&UnitLayout::name>("name"),
                                         attr<&UnitLayout::shard_axis>("shard_axis").optional(),
                                         attr<&UnitLayout::replica_axis>("replica_axis").optional(),
                                         attr<&UnitLayout::shards>("shards").optional(),
                                         attr<&UnitLayout::shard>("shard").local().optional(),
                                         attr<&UnitLayout::replicas>("replicas").optional(),
                                         attr<&UnitLayout::shard_bytes>("shard_bytes").local(),
                                         attr<&UnitLayout::full_bytes>("full_bytes").local(),
                                         attr<&UnitLayout::in_place>("in_place").optional(),
                                         attr<&UnitLayout::pieces>("pieces")};
};

/// The layout that a text from UnitLayout::print() describes; interning checks its content and keeps it. Error saying
/// what is wrong in the text.
UnitLayout parse_unit_layout(std::string_view text);

/// What attributes call a layout on this rank: its name, with "~2" after it if another layout of that name got a label
/// here before and has it still. Ranks that make and drop layouts alike use the same labels; one without a label goes
/// by its name.
std::string label_of(const UnitLayout& layout);

/// A layout in attributes. Of a call it refers to one that the caller has, which costs nothing; a copy, as a tape or a
/// program has it, keeps the layout.
class UnitRef {
 public:
  UnitRef() = default;
  UnitRef(const UnitLayout& layout) : layout_(&layout) {}  // NOLINT: rows are called with layouts
  UnitRef(UnitLayoutPtr layout) : layout_(layout.get()), kept_(std::move(layout)) {}  // NOLINT
  /// Error as UnitLayout::shared(). There is no move: what leaves the place that it was made in is kept.
  UnitRef(const UnitRef& other)
      : layout_(other.layout_), kept_(other.kept_ || !layout_ ? other.kept_ : layout_->shared()) {}
  UnitRef& operator=(const UnitRef& other) {
    UnitRef copy(other);
    layout_ = copy.layout_;
    kept_.swap(copy.kept_);
    return *this;
  }

  const UnitLayout& operator*() const { return *layout_; }
  const UnitLayout* operator->() const { return layout_; }
  const UnitLayout* get() const { return layout_; }
  explicit operator bool() const { return layout_ != nullptr; }
  friend bool operator==(const UnitRef& a, const UnitRef& b) { return a.layout_ == b.layout_; }

 private:
  const UnitLayout* layout_ = nullptr;
  UnitLayoutPtr kept_;  // null: somebody else has it
};

/// Written as its label, and read by it, unless the text has names of its own. Equal ones are one object; their hash is
/// of the content, the same in every process.
template <>
struct AttrValue<UnitRef> {
  static void print(const UnitRef& layout, AttrWriter& out);
  static void read(UnitRef& layout, AttrReader& in);
  static bool equal(const UnitRef& a, const UnitRef& b) { return a == b; }
  static std::uint64_t hash(const UnitRef& layout);
};

}  // namespace sherd
