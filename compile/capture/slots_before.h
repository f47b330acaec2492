#pragma once
// Slots as they were when a recording began: ids and recipes, no tensor is kept.
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "compile/ir/graph.h"
#include "runtime/autograd/slot.h"
#include "runtime/exec/context.h"

namespace sherd {

/// Null for a plain tensor.
const Distributed* layout_of(const Tensor& tensor);
/// Names the bytes of the local tensor; 0 if it has none.
std::uint64_t storage_id(const Tensor& tensor);
/// Without the layout, which has no name yet.
ir::TensorGuard guard_of(const Tensor& tensor);

class SlotsBefore {
 public:
  struct Seen {
    std::uint64_t storage = 0;  // 0: none
    ir::TensorGuard guard{};    // without the layout, which is named when it is bound
    const Distributed* layout = nullptr;
    friend bool operator==(const Seen&, const Seen&) = default;
  };
  struct Of {
    NodeRef leaf;
    bool had_value = false, requires_grad = false, holds_grad_alone = false, is_gathered = false;
    Seen value{}, grad{};  // the value: that which it keeps where a unit has gathered it
    const Seen& seen(bool gradient) const { return gradient ? grad : value; }
    /// Null if it is gone.
    Slot* slot() const { return static_cast<Leaf*>(leaf.get())->slot; }
  };
  /// Where the bytes of a storage were.
  struct Place {
    int of;
    bool gradient;
    bool gathered = false;  // what is there for this step only: guarded, not bound
  };
  static Seen seen(const Tensor& tensor);

  /// This rank's slots, then those of `others`, leaves of slots that other threads have made, that live.
  SlotsBefore(const RankContext& context, std::span<const NodeRef> others);
  /// Null for a slot that was not there.
  const Of* find(const Leaf* leaf) const;
  const Of& of(const Place& place) const { return list_[static_cast<std::size_t>(place.of)]; }
  /// Empty for a storage that no slot had.
  std::span<const Place> places_of(std::uint64_t storage) const;
  /// What lives of this rank now, then what still lives of the others.
  std::vector<Slot*> living() const;
  /// Notes a slot that the step uses, another thread has made, and nobody has told of.
  void meet(const Slot& slot);
  /// Leaves of those slots.
  const std::vector<NodeRef>& met() const { return met_; }

 private:
  void add(const Slot& slot);

  const RankContext& context_;
  std::vector<Of> list_;
  std::size_t num_own_ = 0;  // of this rank; slots of others follow
  std::vector<NodeRef> met_;
  std::unordered_map<std::uint64_t, std::vector<Place>> places_;  // by storage
  std::unordered_map<const Leaf*, int> indices_;
};

}  // namespace sherd
