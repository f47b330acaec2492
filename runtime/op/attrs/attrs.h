#pragma once
// Attributes of one op call: what it carries besides tensors, a struct of its row (see attr_kind.h).
//
//   AttrsView   what a call is given: a reference to the caller's struct. Two words, nothing is copied.
//   Attrs       what a tape node, a graph or a plan keeps: an immutable block that all its owners share.
//
//   call(op, NarrowAttrs{0, 2, 4}, x)    ->  AttrsView  --keep()-->  Attrs  -->  AttrsView  --keep()-->  the same block
#include <atomic>
#include <string>

#include "runtime/op/attrs/attr_kind.h"
#include "runtime/tensor/intrusive.h"

namespace sherd {

class Attrs;

/// Attributes in memory of their own; the struct follows the header.
class AttrBlock final : public RefCounted {
 public:
  /// A copy of `object`.
  static Ref<AttrBlock> make(const AttrKind& kind, const void* object);
  static void destroy(AttrBlock* block);

  const AttrKind& kind() const { return kind_; }
  const void* object() const { return this + 1; }
  /// For the maker of the block, before it is shared.
  void* object() { return this + 1; }
  /// Hash of the content; computed at the first call.
  std::uint64_t hash() const;

 private:
  explicit AttrBlock(const AttrKind& kind) : kind_(kind) {}
  const AttrKind& kind_;
  mutable std::atomic<std::uint64_t> hash_{0};  // 0: not known yet
};

/// A reference to attributes that are owned elsewhere: by the caller, for the duration of the call, or by a block.
class AttrsView {
 public:
  AttrsView() = default;
  template <AttrStruct T>
  AttrsView(const T& value) : kind_(&attr_kind<T>), object_(&value) {  // NOLINT: implicit, rows are called with structs
    static_assert(alignof(T) <= alignof(AttrBlock));
  }
  explicit AttrsView(const AttrBlock& block) : object_(block.object()) {}

  /// The struct; asking for another type is a bug in the row.
  template <class T>
  const T& as() const {
    return *static_cast<const T*>(object_);
  }
  bool empty() const { return object_ == nullptr; }
  /// Null if there are none.
  const AttrKind* kind() const { return kind_ || !object_ ? kind_ : &block()->kind(); }
  const void* object() const { return object_; }
  /// Attributes that outlive the call: a copy, or the block that these are in.
  Attrs keep() const;

  /// "dim=1 keep=true"; parse_attrs() reads it.
  std::string print() const;
  /// The same without fields whose values differ between ranks that run one program.
  std::string print_rank_neutral() const;
  std::uint64_t hash() const;

 private:
  const AttrBlock* block() const { return static_cast<const AttrBlock*>(object_) - 1; }

  const AttrKind* kind_ = nullptr;  // null: there are none, or they are in a block, which knows its kind
  const void* object_ = nullptr;
};

/// Shared, immutable attributes.
class Attrs {
 public:
  Attrs() = default;
  template <AttrStruct T>
  Attrs(const T& value) : block_(AttrBlock::make(attr_kind<T>, &value)) {  // NOLINT: implicit, as for the view
    static_assert(alignof(T) <= alignof(AttrBlock));
  }
  explicit Attrs(Ref<AttrBlock> block) : block_(std::move(block)) {}
  operator AttrsView() const { return block_ ? AttrsView(*block_) : AttrsView(); }  // NOLINT: every reader takes a view

  template <class T>
  const T& as() const {
    return *static_cast<const T*>(static_cast<const AttrBlock&>(*block_).object());
  }
  bool empty() const { return !block_; }
  const AttrKind* kind() const { return block_ ? &block_->kind() : nullptr; }
  std::string print() const { return AttrsView(*this).print(); }
  std::string print_rank_neutral() const { return AttrsView(*this).print_rank_neutral(); }
  std::uint64_t hash() const { return block_ ? block_->hash() : 0; }

 private:
  Ref<AttrBlock> block_;
};

/// Whether kind and content are equal.
bool operator==(AttrsView a, AttrsView b);

inline Attrs AttrsView::keep() const {
  if (kind_) return Attrs(AttrBlock::make(*kind_, object_));
  return object_ ? Attrs(Ref<AttrBlock>(const_cast<AttrBlock*>(block()))) : Attrs();  // to be counted, not changed
}

}  // namespace sherd
