#include "compile/ir/analysis/loans.h"

#include <algorithm>

#include "compile/ir/text/print.h"
#include "runtime/op/rows/wait_attrs.h"
#include "runtime/tensor/indices.h"

namespace sherd::ir {

QueueUse queue_of(const GraphNode& node) { return node.op->queue ? node.op->queue(node.attrs) : QueueUse{}; }

std::vector<int> Loans::pass(std::size_t node) {
  std::vector<int> ended;
  const GraphNode& n = program_.nodes[node];
  if (n.op->traits.waits) {
    const bool to_write = n.attrs.as<WaitAttrs>().to_write;
    for (const TensorRef& ref : n.in) {
      if (!ref.defined()) continue;
      if (const int item = writer(ref.value); item >= 0) end(item, static_cast<int>(node), ended);
      if (to_write)
        for (const int item : of(ref.value).readers) end(item, static_cast<int>(node), ended);
    }
  } else if (const QueueUse queue = queue_of(n); !queue.name.empty()) {
    begin(node, queue);
  }
  return ended;
}

Loans::Item Loans::item_of(std::size_t node, std::string_view queue) const {
  Item item{.node = static_cast<int>(node), .queue = queue, .reads = {}, .writes = {}, .follows = {}};
  std::vector<Access> list;
  append_accesses(program_, roots_, program_.nodes[node], list);
  const auto add = [](std::vector<ValueId>& values, ValueId v) {
    if (std::find(values.begin(), values.end(), v) == values.end()) values.push_back(v);
  };
  for (const Access& access : list)
    if (access.writes) add(item.writes, access.value);
  for (const Access& access : list)
    if (!access.writes && std::find(item.writes.begin(), item.writes.end(), access.value) == item.writes.end())
      add(item.reads, access.value);
  const auto follow = [&](int other) {
    if (other >= 0 && !this->item(other).is_over() && this->item(other).queue != queue) item.follows.push_back(other);
  };
  for (const ValueId v : item.reads) follow(writer(v));
  for (const ValueId v : item.writes)
    for (const int other : users(v)) follow(other);
  return item;
}

void Loans::begin(std::size_t node, const QueueUse& queue) {
  const Item item = item_of(node, queue.name);
  if (item.reads.empty() && item.writes.empty()) return;
  for (std::size_t i = 0; i < queue.items; ++i) {
    by_queue_[queue.name].push_back(num_items());
    items_.push_back(item);
  }
  const int last = num_items() - 1;  // the others are over before it
  for (const ValueId v : item.reads) of(v).readers.push_back(last);
  for (const ValueId v : item.writes) of(v) = {last, {}};
}

// With an item all that its queue was given before is over, and what those follow.
void Loans::end(int item, int node, std::vector<int>& ended) {
  std::size_t seen = ended.size();
  for (std::vector<int> open{item}; !open.empty();) {
    const int newest = open.back();
    open.pop_back();
    if (this->item(newest).is_over()) continue;
    const std::string_view queue = this->item(newest).queue;
    const std::vector<int>& all = by_queue_[queue];
    for (std::size_t& next = first_open_[queue]; next < all.size() && all[next] <= newest; ++next) {
      items_[static_cast<std::size_t>(all[next])].ended_by = node;
      ended.push_back(all[next]);
    }
    for (; seen < ended.size(); ++seen) {
      const std::vector<int>& follows = this->item(ended[seen]).follows;
      open.insert(open.end(), follows.begin(), follows.end());
    }
  }
}

std::vector<int> Loans::users(ValueId value) const {
  std::vector<int> users = of(value).readers;
  if (of(value).writer >= 0) users.push_back(of(value).writer);
  return users;
}

bool Loans::is_lent(ValueId value) const {
  const auto is_open = [&](int index) { return !item(index).is_over(); };
  const Of& users = of(value);
  return (users.writer >= 0 && is_open(users.writer)) || std::ranges::any_of(users.readers, is_open);
}

std::vector<int> Loans::open_items(std::string_view queue) const {
  const auto all = by_queue_.find(queue);
  if (all == by_queue_.end()) return {};
  const auto first = first_open_.find(queue);
  return {all->second.begin() + static_cast<std::ptrdiff_t>(first == first_open_.end() ? 0 : first->second),
          all->second.end()};
}

std::vector<int> Loans::needs(std::size_t node) const {
  const GraphNode& n = program_.nodes[node];
  if (items_.empty() || n.op->traits.waits || !queue_of(n).name.empty()) return {};
  std::vector<Access> list;
  append_accesses(program_, roots_, n, list);
  std::vector<int> items;
  for (const Access& access : list) {
    if (access.writes) {
      const std::vector<int> all = users(access.value);
      items.insert(items.end(), all.begin(), all.end());
    } else if (const int item = writer(access.value); item >= 0) {
      items.push_back(item);
    }
  }
  std::sort(items.begin(), items.end());
  items.erase(std::unique(items.begin(), items.end()), items.end());
  return items;
}

std::vector<ValueId> lent_at_end(const Program& program) {
  std::vector<ValueId> lent;
  if (!program.has_waits) return lent;
  Loans loans(program);
  for (const std::size_t i : indices(program.nodes)) loans.pass(i);
  for (const std::size_t v : indices(program.values))
    if (program.values[v].kind == ValueKind::temporary && loans.is_lent(static_cast<ValueId>(v)))
      lent.push_back(static_cast<ValueId>(v));
  return lent;
}

void check_waits(const Program& program) {
  if (!program.has_waits) return;
  Loans loans(program);
  for (const std::size_t i : indices(program.nodes)) {
    const auto refuse = [&](std::string_view text, int item) {
      Error error(fmt::format("the captured graph is broken: a queue still uses {}", text));
      error.add("node", fmt::format("{}: {}", i, describe_node(program, i)));
      if (item >= 0) {
        const auto lender = static_cast<std::size_t>(loans.item(item).node);
        error.add("lent by", fmt::format("{}: {}", lender, describe_node(program, lender)));
      }
      throw error;
    };
    for (const int item : loans.needs(i))
      if (!loans.item(item).is_over()) refuse("bytes that the node touches: it comes before the wait", item);
    loans.pass(i);
    for (const ValueId v : program.nodes[i].frees)
      if (loans.is_lent(v)) refuse(fmt::format("value {}, which the node frees", v), -1);
  }
}

}  // namespace sherd::ir
