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

LeafSums::LeafSums(std::int64_t leaves, TensorMeta gradient, GradSink::Destination home, bool has_several_terms)
    : gradient_(std::move(gradient)),
      home_(std::move(home)),
      has_several_terms_(has_several_terms),
      sums_(static_cast<std::size_t>(leaves)) {}

GradSink::Destination LeafSums::place_of(std::int64_t leaf, bool adds_once) {
  check(leaf != joined_, "a vjp gives a second term of leaf {}, whose first was added up", leaf);
  if (adds_once && leaf % 2 == 1 && !has_several_terms_) {
    add_up_to(leaf - 1);
    joined_ = leaf;
    return {sums_[static_cast<std::size_t>(leaf - 1)], true};
  }
  if (!has_several_terms_) add_up_to(leaf);
  check(leaf >= added_, "a vjp gives a term of leaf {} after {} leaves were added up", leaf, added_);
  Tensor& sum = sums_[static_cast<std::size_t>(leaf)];
  if (sum.defined()) return {sum, true};
  const std::int64_t bytes = numel(gradient_.shape) * byte_size(gradient_.dtype);
  const bool goes_home = leaf == 0 && home_.buffer.defined() && !home_.accumulate;
  sum =
      goes_home ? home_.buffer : view_at(gradient_buffer(bytes, gradient_.device), gradient_.shape, 0, gradient_.dtype);
  return {sum, false};
}

// A leaf that ends subtrees is added to the one before it in each.
void LeafSums::add_up_to(std::int64_t leaf) {
  for (; added_ < leaf; ++added_) {
    const bool is_joined = added_ == joined_;
    check(is_joined || sums_[static_cast<std::size_t>(added_)].defined(), "leaf {} of {} got no gradient", added_,
          sums_.size());
    for (std::int64_t size = is_joined ? 2 : 1; (added_ & size) != 0; size *= 2) {
      const std::int64_t right = added_ & ~(size - 1), left = right - size;
      copy_into(sums_[static_cast<std::size_t>(left)], std::exchange(sums_[static_cast<std::size_t>(right)], Tensor()),
                true);
    }
  }
}

const Tensor& LeafSums::total() {
  add_up_to(std::ssize(sums_));
  return sums_[0];
}

}  // namespace sherd
