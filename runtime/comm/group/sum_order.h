#pragma once
// The order in which reductions add: a balanced binary tree over leaves, which are ranks, or micro-batches of ranks.
//
//   5 leaves   ((0 + 1) + (2 + 3)) + 4
//
// A subtree of 2^k leaves from a multiple of 2^k on is a sum of its own. So leaves may be added in groups, of ranks
// that shard, of replicas, of one rank's micro-batches, and a power of two of leaves has one sum however ranks divide
// them.
#include <bit>
#include <cstddef>
#include <span>

namespace sherd {

/// How many of `leaves` leaves, 2 or more, are to the left of the root.
constexpr std::size_t left_leaves(std::size_t leaves) { return std::bit_floor(leaves - 1); }
/// Additions between a leaf and the root, at most.
constexpr int tree_levels(std::size_t leaves) { return leaves < 2 ? 0 : static_cast<int>(std::bit_width(leaves - 1)); }

/// The sum of one leaf or more.
template <class T, class Add>
T sum_in_tree(std::span<const T> leaves, const Add& add) {
  if (leaves.size() == 1) return leaves[0];
  const std::size_t left = left_leaves(leaves.size());
  return add(sum_in_tree(leaves.first(left), add), sum_in_tree(leaves.subspan(left), add));
}

}  // namespace sherd
