#pragma once
// What must precede what. An edge stands between two nodes if their order can be seen:
//
//   bytes      one writes what the other reads or writes; restoring and releasing a value's data count as writing it
//   effects    both have effects
//   lane       both hand work to one queue, of whatever group: all ranks call them in one order, and one wait ends all
//   queues     one waits for work that the other has started, or one touches bytes for which the other has waited
//
// Slots and gradients get their tensors when the step has ended, and nodes never move past that.
#include <cstddef>
#include <span>
#include <vector>

#include "compile/ir/analysis/version.h"

namespace sherd::ir {

class Order {
 public:
  /// Linear in the refs.
  explicit Order(const Program& program);

  /// Nodes that must come before this one, in ascending order, but for those that these imply.
  std::span<const int> before(std::size_t node) const { return before_[node]; }
  /// And after.
  std::span<const int> after(std::size_t node) const { return after_[node]; }
  /// The first and the last place among the nodes where this one can stand while the others keep their order.
  std::size_t earliest(std::size_t node) const {
    return before_[node].empty() ? 0 : static_cast<std::size_t>(before_[node].back()) + 1;
  }
  std::size_t latest(std::size_t node) const {
    return after_[node].empty() ? before_.size() - 1 : static_cast<std::size_t>(after_[node].front()) - 1;
  }
  /// Whether the node can be taken out and put back as node `to`.
  bool may_move(std::size_t node, std::size_t to) const { return earliest(node) <= to && to <= latest(node); }

 private:
  void order_bytes(const Program& program);
  void order_calls(const Program& program);
  void order_waits(const Program& program);
  void add(int first, int second);

  std::vector<std::vector<int>> before_, after_;
};

/// Puts a node in another place. Frees follow the new order; whether the move was legal is verify()'s to say.
void move_node(Program& program, std::size_t node, std::size_t to);

}  // namespace sherd::ir
