#include "compile/ir/analysis/order.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "compile/ir/analysis/loans.h"
#include "compile/ir/analysis/numbers.h"
#include "runtime/tensor/indices.h"

namespace sherd::ir {

Order::Order(const Program& program) : before_(program.nodes.size()), after_(program.nodes.size()) {
  order_bytes(program);
  order_calls(program);
  order_waits(program);
  for (std::vector<int>& list : before_) {
    std::sort(list.begin(), list.end());
    list.erase(std::unique(list.begin(), list.end()), list.end());
  }
  for (const std::size_t i : indices(before_))
    for (const int first : before_[i]) after_[static_cast<std::size_t>(first)].push_back(static_cast<int>(i));
}

void Order::add(int first, int second) {
  if (first >= 0 && first != second) before_[static_cast<std::size_t>(second)].push_back(first);
}

void Order::order_bytes(const Program& program) {
  const Versions versions(program);
  for (const std::size_t i : indices(program.nodes))
    for (const Versions::Use& use : versions.uses_of(i)) {
      for (const Part& part : versions.parts_of(use)) add(versions[part.version].node, use.node);
      for (const int reader : versions.readers_before(use)) add(reader, use.node);
    }
}

void Order::order_calls(const Program& program) {
  int effect = -1;
  std::map<std::string_view, int> calls;
  for (const std::size_t i : indices(program.nodes)) {
    const GraphNode& node = program.nodes[i];
    const auto index = static_cast<int>(i);
    if (node.op->traits.waits) continue;
    if (node.op->traits.effect) add(std::exchange(effect, index), index);
    if (const std::string_view lane = lane_of(node); !lane.empty()) {
      const auto [last, is_first] = calls.try_emplace(lane, index);
      if (!is_first) add(std::exchange(last->second, index), index);
    }
  }
}

// A wait comes after what it waits for and before who needs it. Of a queue's items one wait ends all that came before
// it, so other work of the queue does not start in between either.
void Order::order_waits(const Program& program) {
  Loans loans(program);
  std::map<std::string_view, int> last_wait;  // by queue
  for (const std::size_t i : indices(program.nodes)) {
    const auto index = static_cast<int>(i);
    for (const int item : loans.needs(i)) add(loans.item(item).ended_by, index);
    const int before = loans.num_items();
    for (const int item : loans.pass(i)) {
      add(loans.item(item).node, index);
      last_wait[loans.item(item).queue] = index;
    }
    if (loans.num_items() == before) continue;
    const auto last = last_wait.find(loans.item(before).queue);
    if (last != last_wait.end()) add(last->second, index);
  }
}

void move_node(Program& program, std::size_t node, std::size_t to) {
  const auto first = program.nodes.begin() + static_cast<std::ptrdiff_t>(std::min(node, to));
  const auto last = program.nodes.begin() + static_cast<std::ptrdiff_t>(std::max(node, to)) + 1;
  if (node < to) std::rotate(first, first + 1, last);
  else std::rotate(first, last - 1, last);
  compute_lifetimes(program);
}

}  // namespace sherd::ir
