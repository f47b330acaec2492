#include "runtime/comm/group/comm_counter.h"

#include <algorithm>
#include <utility>

#include "runtime/comm/group/count_collective.h"
#include "runtime/exec/context.h"
#include "runtime/memory/accounting.h"

namespace sherd {

namespace {

// The scope of the rank's thread that counts, or null.
struct InnermostCounter {
  CommCounter* counter = nullptr;
};
CommCounter*& innermost_counter() { return RankContext::current().state<InnermostCounter>().counter; }

bool is_inside(std::string_view path, std::string_view module) {
  return path.starts_with(module) && (path.size() == module.size() || module.empty() || path[module.size()] == '.');
}

}  // namespace

CommCounter::CommCounter() : innermost_(innermost_counter()), outer_(std::exchange(innermost_, this)) {
  if (outer_) cause_ = outer_->cause_;
}

CommCounter::~CommCounter() { innermost_ = outer_; }

template <class Predicate>
CommCounter::Item CommCounter::sum_if(Predicate&& predicate) const {
  Item sum;
  for (const Entry& entry : entries_) {
    if (!predicate(entry)) continue;
    sum.calls += entry.item.calls;
    sum.bytes += entry.item.bytes;
  }
  return sum;
}

CommCounter::Item CommCounter::total() const {
  return sum_if([](const Entry&) { return true; });
}

CommCounter::Item CommCounter::of(comm::CommOp kind) const {
  return sum_if([&](const Entry& e) { return e.kind == kind; });
}

CommCounter::Item CommCounter::of_op(std::string_view op) const {
  return sum_if([&](const Entry& e) { return e.op == op || e.cause == op; });
}

CommCounter::Item CommCounter::of_module(std::string_view path) const {
  return sum_if([&](const Entry& e) { return is_inside(e.module, path); });
}

void CommCounter::add(const IssuedCollective& issued, std::string_view cause, std::string_view module) {
  const auto is_same = [&](const Entry& e) {
    return e.kind == issued.kind && e.ranks == issued.ranks && e.op == issued.op && e.cause == cause &&
           e.module == module;
  };
  auto entry = std::ranges::find_if(entries_, is_same);
  if (entry == entries_.end())
    entry = entries_.insert(
        entry, {issued.kind, std::string(issued.op), std::string(cause), std::string(module), issued.ranks, Item{}});
  entry->item.calls += 1;
  entry->item.bytes += issued.bytes;
}

std::string CommCounter::describe() const {
  if (entries_.empty()) return "no communication";
  std::size_t op_width = 4;
  const auto op_text = [](const Entry& e) { return e.cause.empty() ? e.op : fmt::format("{} for {}", e.op, e.cause); };
  for (const Entry& e : entries_) op_width = std::max(op_width, op_text(e).size());
  const auto line = [&](std::string_view kind, std::string_view ranks, std::int64_t calls, std::int64_t bytes,
                        std::string_view op, std::string_view module) {
    std::string text = fmt::format("{:<15}{:>6}{:>8}{:>10}  {:<{}}  {}", kind, ranks, calls, format_bytes(bytes), op,
                                   op_width, module);
    return text.substr(0, text.find_last_not_of(' ') + 1) + "\n";
  };
  std::string text =
      fmt::format("{:<15}{:>6}{:>8}{:>10}  {:<{}}  module\n", "collective", "ranks", "calls", "bytes", "op", op_width);
  for (const Entry& e : entries_)
    text += line(comm::name(e.kind), std::to_string(e.ranks), e.item.calls, e.item.bytes, op_text(e), e.module);
  const Item sum = total();
  return text + line("total", "", sum.calls, sum.bytes, "", "");
}

CommCause::CommCause(std::string_view op) : cause_(innermost_counter() ? &innermost_counter()->cause_ : nullptr, op) {}

void count_collective(const IssuedCollective& issued) {
  CommCounter* const innermost = innermost_counter();
  if (innermost == nullptr || issued.ranks <= 1) return;
  std::string_view module = issued.module;
  if (const std::string* const path = RankContext::current().module_path; path && module.empty()) module = *path;
  for (CommCounter* counter = innermost; counter; counter = counter->outer_)
    counter->add(issued, innermost->cause_, module);
}

}  // namespace sherd
