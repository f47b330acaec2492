#include "runtime/autograd/leaves.h"

#include <bit>
#include <utility>

#include "runtime/op/rows/ops.h"
#include "runtime/op/unit/buffer_views.h"
#include "runtime/op/unit/unit.h"

namespace sherd {

LeavesScope::LeavesScope(std::int64_t leaves) : modes_(tape_modes()), outer_(modes_.leaves) {
  check(leaves > 0 && std::has_single_bit(static_cast<std::uint64_t>(leaves)),
        "a pass over {} leaves: their sum is a balanced tree, so they are a power of two", leaves);
  modes_.leaves = leaves;
}

LeavesScope::~LeavesScope() {
  modes_.leaves = outer_;
  modes_.loss_of_leaves = Tensor();
}

LeafGradients::Sums::Sums(std::int64_t leaves, TensorMeta gradient, GradSink::Destination home, bool has_several_terms)
    : gradient_(std::move(gradient)),
      home_(std::move(home)),
      has_several_terms_(has_several_terms),
      sums_(static_cast<std::size_t>(leaves)) {}

Tensor LeafGradients::Sums::place_for(DType dtype, bool goes_home) const {
  const Tensor& home = home_.buffer;
  if (goes_home && home.defined() && !home_.accumulate) return home;
  const bool is_distributed = home.defined() && home.is_distributed();
  const Shape& shape = is_distributed ? home.local().shape() : gradient_.shape;
  const Tensor fresh = view_at(gradient_buffer(numel(shape) * byte_size(dtype), gradient_.device), shape, 0, dtype);
  return is_distributed ? Tensor::distributed_like(home, fresh) : fresh;
}

GradSink::Destination LeafGradients::Sums::place_of(std::int64_t leaf) {
  if (!has_several_terms_) add_up_to(leaf);
  check(leaf >= added_, "a vjp gives a term of leaf {} after {} leaves were added up", leaf, added_);
  Tensor& sum = sums_[static_cast<std::size_t>(leaf)];
  if (sum.defined()) return {sum, true};
  sum = place_for(gradient_.dtype, leaf == 0 && !is_wide());
  return {sum, false};
}

// A leaf that ends subtrees is added to the one before it in each.
void LeafGradients::Sums::add_up_to(std::int64_t leaf) {
  const auto at = [this](std::int64_t first) -> Tensor& { return sums_[static_cast<std::size_t>(first)]; };
  for (; added_ < leaf; ++added_) {
    check(at(added_).defined(), "leaf {} of {} got no gradient", added_, sums_.size());
    if (is_wide() && added_ % 2 == 0) {
      const Tensor term = std::exchange(at(added_), place_for(home_.buffer.dtype(), added_ == 0));
      copy_into(at(added_), term);
    }
    for (std::int64_t size = 1; (added_ & size) != 0; size *= 2) {
      const std::int64_t right = added_ & ~(size - 1), left = right - size;
      copy_into(at(left), std::exchange(at(right), Tensor()), true);
    }
  }
}

const Tensor& LeafGradients::Sums::total() {
  add_up_to(std::ssize(sums_));
  return sums_[0];
}

LeafGradients::Sums& LeafGradients::sums_of(Leaf& slot, const TensorMeta& gradient) {
  const auto found = sums_.find(&slot);
  if (found != sums_.end()) return found->second;
  const auto home = slot.slot->sink().home_of_leaves(*slot.slot);
  return sums_.try_emplace(&slot, count_, gradient, home, slot.expected > 1).first->second;
}

GradSink::Destination LeafGradients::place_of(std::int64_t leaf, Leaf& slot, const TensorMeta& gradient) {
  Sums& sums = sums_of(slot, gradient);
  const Tensor& home = sums.home().buffer;
  if (gradient.layout && !(home.defined() && home.is_distributed())) return {};
  return sums.place_of(leaf);
}

void LeafGradients::add(std::int64_t leaf, Leaf& slot, Tensor gradient) {
  Sums& sums = sums_of(slot, gradient.meta());
  gradient = slot.slot->sink().of_leaf(*slot.slot, std::move(gradient));
  const auto to = sums.place_of(leaf);
  copy_into(to.buffer, std::move(gradient), to.accumulate);
}

void LeafGradients::put_sum(const Leaf& leaf) {
  auto sums = sums_.extract(&leaf);
  if (!sums) return;
  Slot& slot = *leaf.slot;
  const Tensor total = sums.mapped().total();
  const GradSink::Destination& home = sums.mapped().home();
  if (!home.buffer.defined()) return slot.sink().accept(slot, total);
  if (home.accumulate) copy_into(home.buffer, total, true);
  slot.sink().wrote(slot);
}

}  // namespace sherd
