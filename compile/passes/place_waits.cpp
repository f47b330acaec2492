#include "compile/passes/place_waits.h"

#include <algorithm>
#include <span>
#include <utility>

#include "compile/ir/analysis/lifetimes.h"
#include "compile/ir/analysis/loans.h"
#include "compile/ir/builder.h"
#include "compile/ir/rewrite.h"
#include "runtime/op/rows/ops.h"
#include "runtime/op/rows/wait_attrs.h"
#include "runtime/tensor/indices.h"

namespace sherd::ir {

namespace {

class Placer {
 public:
  explicit Placer(Program& program)
      : program_(without_waits(program)),
        last_(last_mentions(program)),
        recorded_(std::exchange(program.nodes, {})),
        loans_(program) {}

  void run() {
    program_.nodes.reserve(recorded_.size());
    for (const std::size_t i : indices(recorded_)) {
      program_.nodes.push_back(std::move(recorded_[i]));
      const std::vector<int> needed = loans_.needs(program_.nodes.size() - 1);
      make_room();
      wait_for(needed);
      loans_.pass(program_.nodes.size() - 1);
      wait_for_unused(static_cast<int>(i));
    }
    program_.has_waits = true;
    settle(program_);
  }

 private:
  // A pass may have put some where it wants bytes back: they stay.
  static Program& without_waits(Program& program) {
    if (!program.has_waits) return program;
    std::erase_if(program.nodes, [](const GraphNode& node) { return node.op->traits.waits; });
    return program;
  }

  // The node is the last one; waits go before it. One node waits for what is read, one for what is written.
  void wait_for(const std::vector<int>& items) {
    std::vector<ValueId> to_read, to_write;
    for (const int item : newest_of_each_queue(items)) {
      const auto [value, writes] = name_for(item);
      (writes ? to_write : to_read).push_back(value);
    }
    put_before_last(to_read, false);
    put_before_last(to_write, true);
  }

  // A wait for an item ends those before it in the queue.
  std::vector<int> newest_of_each_queue(const std::vector<int>& items) const {
    std::vector<int> newest;
    for (const int item : items) {
      if (loans_.item(item).is_over()) continue;
      const auto same = std::find_if(newest.begin(), newest.end(),
                                     [&](int other) { return loans_.item(other).queue == loans_.item(item).queue; });
      if (same == newest.end()) newest.push_back(item);
      else *same = std::max(*same, item);
    }
    return newest;
  }

  // Which value the wait names: an output that no later item overwrites; else an input, and then the wait also covers
  // its later writers, which run after this item anyway.
  std::pair<ValueId, bool> name_for(int item) const {
    const Loans::Item& of = loans_.item(item);
    for (const ValueId v : of.writes)
      if (const int writer = loans_.writer(v); writer >= 0 && loans_.item(writer).node == of.node) return {v, false};
    return {of.reads.empty() ? of.writes.front() : of.reads.front(), true};
  }

  void put_before_last(std::vector<ValueId>& values, bool to_write) {
    std::sort(values.begin(), values.end());
    values.erase(std::unique(values.begin(), values.end()), values.end());
    if (values.empty()) return;
    GraphNode wait = node_beside(program_.nodes.back(), op::wait, WaitAttrs{to_write});
    for (const ValueId v : values) wait.in.push_back(program_.value(v).home);
    program_.nodes.insert(program_.nodes.end() - 1, std::move(wait));
    loans_.pass(program_.nodes.size() - 2);
  }

  void make_room() {
    const QueueUse queue = queue_of(program_.nodes.back());
    if (queue.name.empty()) return;
    const auto is_full = [&] {
      const std::size_t open = loans_.open_items(queue.name).size();
      return open > 0 && open + queue.items > queue.max_in_flight;
    };
    while (is_full()) {
      const int oldest = loans_.open_items(queue.name).front();
      wait_for({oldest});
      check(loans_.item(oldest).is_over(), "no wait can be placed for an item of queue {}: its values have no layout",
            queue.name);
    }
  }

  // Dropping what a queue writes waits for it: a result, or what the call before has made for it.
  void wait_for_unused(int recorded) {
    const GraphNode& node = program_.nodes.back();
    if (queue_of(node).name.empty()) return;
    std::vector<ValueId> unused;
    const auto add = [&](const TensorRef& written) {
      if (written.defined() && program_.value(written.value).kind == ValueKind::temporary &&
          last_[static_cast<std::size_t>(written.value)] == recorded)
        unused.push_back(written.value);
    };
    std::ranges::for_each(std::span(node.in).first(static_cast<std::size_t>(node.num_mutated)), add);
    std::ranges::for_each(node.out, add);
    if (unused.empty()) return;
    GraphNode wait = node_beside(node, op::wait, WaitAttrs{});
    for (const ValueId v : unused) wait.in.push_back(program_.value(v).home);
    program_.nodes.push_back(std::move(wait));
    loans_.pass(program_.nodes.size() - 1);
  }

  Program& program_;
  const std::vector<int> last_;      // by value: recorded node that mentions it last
  std::vector<GraphNode> recorded_;  // moves to the program's nodes, one after the other
  Loans loans_;                      // of program_.nodes as they grow
};

}  // namespace

void place_waits(Program& program) { Placer(program).run(); }

}  // namespace sherd::ir
