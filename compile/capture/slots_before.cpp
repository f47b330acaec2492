#include "compile/capture/slots_before.h"

#include <algorithm>

#include "runtime/tensor/indices.h"

namespace sherd {

const Distributed* layout_of(const Tensor& tensor) { return tensor.is_distributed() ? tensor.layout() : nullptr; }

std::uint64_t storage_id(const Tensor& tensor) {
  if (!tensor.defined()) return 0;
  const Tensor local = tensor.local();
  return local.storage() ? local.storage()->id() : 0;
}

ir::TensorGuard guard_of(const Tensor& tensor) {
  const Tensor local = tensor.local();
  return {.dtype = local.dtype(),
          .shape = local.shape(),
          .strides = local.strides(),
          .offset = local.offset(),
          .global = tensor.shape(),
          .device = local.device()};
}

SlotsBefore::Seen SlotsBefore::seen(const Tensor& tensor) {
  const std::uint64_t storage = storage_id(tensor);
  return storage == 0 ? Seen{} : Seen{storage, guard_of(tensor), layout_of(tensor)};
}

SlotsBefore::SlotsBefore(const RankContext& context, std::span<const NodeRef> others) : context_(context) {
  for (const Slot* slot : living_slots()) add(*slot);
  num_own_ = list_.size();
  for (const NodeRef& leaf : others)
    if (const Slot* slot = static_cast<Leaf*>(leaf.get())->slot)
      if (!indices_.contains(slot->leaf())) add(*slot);  // this rank may be the one that has made it
}

// What a unit has gathered into a slot is its own, and what the slot keeps is what a replay looks up.
void SlotsBefore::add(const Slot& slot) {
  Of before{.leaf = NodeRef(slot.leaf()),
            .had_value = slot.has_value(),
            .requires_grad = slot.requires_grad(),
            .holds_grad_alone = slot.grad().defined() && ir::is_sole_owner(slot.grad()),
            .grad = seen(slot.grad())};
  const int index = static_cast<int>(list_.size());
  const auto place = [&](const Seen& at, Place here) {
    if (at.storage != 0) places_[at.storage].push_back(here);
  };
  if (slot.has_value()) {
    const Tensor local = slot.value().local();
    before.value = seen(slot.value());
    before.is_gathered =
        before.value.storage != 0 && local.storage()->owner && storage_id(slot.kept_value()) != before.value.storage;
    place(before.value, {.of = index, .gradient = false, .gathered = before.is_gathered});
    if (before.is_gathered) place(before.value = seen(slot.kept_value()), {.of = index, .gradient = false});
  }
  place(before.grad, {.of = index, .gradient = true});
  indices_[slot.leaf()] = index;
  list_.push_back(std::move(before));
}

const SlotsBefore::Of* SlotsBefore::find(const Leaf* leaf) const {
  const auto found = indices_.find(leaf);
  return found == indices_.end() ? nullptr : &list_[static_cast<std::size_t>(found->second)];
}

std::span<const SlotsBefore::Place> SlotsBefore::places_of(std::uint64_t storage) const {
  const auto found = places_.find(storage);
  return found == places_.end() ? std::span<const Place>() : found->second;
}

std::vector<Slot*> SlotsBefore::living() const {
  std::vector<Slot*> all = living_slots();
  for (const std::size_t i : Numbers<std::size_t>(num_own_, list_.size()))
    if (Slot* slot = list_[i].slot()) all.push_back(slot);
  return all;
}

// Another thread may own a model. Its slots are state as this rank's own are, but only the step knows which it uses,
// and by then what they were at its start is gone.
void SlotsBefore::meet(const Slot& slot) {
  if (slot.home() == context_.rank_register || indices_.contains(slot.leaf())) return;
  if (std::ranges::find(met_, static_cast<Node*>(slot.leaf()), &NodeRef::get) == met_.end())
    met_.emplace_back(slot.leaf());
}

}  // namespace sherd
