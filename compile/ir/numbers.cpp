#include "compile/ir/numbers.h"

#include <algorithm>
#include <map>
#include <string>

#include "compile/ir/access.h"
#include "compile/ir/print.h"
#include "runtime/op/collective_attrs.h"

namespace sherd {

namespace {

// Counts the writes of one root's bytes. Most values are written whole, which takes no list.
struct WriteCount {
  std::int32_t whole = 0;
  std::vector<ByteRanges::Range> partial;
  std::int32_t touching(const ByteRanges::Range& bytes) const {
    std::int32_t count = whole;
    for (const ByteRanges::Range& other : partial)
      if (other.first < bytes.second && bytes.first < other.second) ++count;
    return count;
  }
};

class Counter {
 public:
  explicit Counter(const Program& program) : program_(program), roots_(program), writes_(program.values.size()) {}

  /// The numbers of the next node in execution order.
  std::vector<std::int32_t> next(const GraphNode& node) {
    std::vector<Access>& list = accesses_;
    list.clear();
    append_accesses(program_, roots_, node, list);
    std::vector<std::int32_t> numbers(node.in.size() + node.out.size() + node.restores.size() + node.releases.size());
    for (const Access& access : list) {
      const std::int32_t count = writes_[static_cast<std::size_t>(access.root)].touching(access.bytes);
      if (access.kind == AccessKind::restored || access.kind == AccessKind::released)
        note_presence(node, access, count, numbers);
      else if (access.kind != AccessKind::awaited) numbers[place_of(node, access)] = count;
    }
    for (const Access& access : list)
      if (access.writes) write(access);
    if (node.op->traits.waits) return numbers;
    if (node.op->traits.effect) numbers.push_back(num_effects_++);
    else if (const std::string channel = channel_name(node); !channel.empty()) numbers.push_back(num_calls_[channel]++);
    return numbers;
  }

 private:
  static std::size_t place_of(const GraphNode& node, const Access& access) {
    const bool is_output = access.kind == AccessKind::output || access.kind == AccessKind::accumulated;
    return static_cast<std::size_t>(access.operand) + (is_output ? node.in.size() : 0);
  }
  static void note_presence(const GraphNode& node, const Access& access, std::int32_t count,
                            std::vector<std::int32_t>& numbers) {
    std::size_t at = node.in.size() + node.out.size();
    for (const std::vector<ValueId>* values : {&node.restores, &node.releases})
      for (const ValueId v : *values) {
        if (v == access.value) numbers[at] = count;
        ++at;
      }
    if (access.operand >= 0) numbers[static_cast<std::size_t>(access.operand)] = count;
  }
  void write(const Access& access) {
    WriteCount& count = writes_[static_cast<std::size_t>(access.root)];
    const bool is_whole = program_.value(access.root).kind != ValueKind::argument && access.bytes.first <= 0 &&
                          access.bytes.second >= program_.value(access.root).bytes;
    if (is_whole) ++count.whole;
    else count.partial.push_back(access.bytes);
  }

  const Program& program_;
  const ByteRoots roots_;
  std::vector<WriteCount> writes_;  // by root
  std::vector<Access> accesses_;    // of the node that is counted
  std::int32_t num_effects_ = 0;
  std::map<std::string, std::int32_t> num_calls_;  // by channel
};

// What number i of a node says, with the number found.
std::string sentence(const GraphNode& node, std::size_t i, std::int32_t found) {
  if (i < node.in.size()) return fmt::format("input {} comes after {} writes of its bytes", i, found);
  i -= node.in.size();
  if (i < node.out.size()) return fmt::format("output {} comes after {} writes of its bytes", i, found);
  i -= node.out.size();
  if (i < node.restores.size() + node.releases.size())
    return fmt::format("data comes or goes after {} writes of it", found);
  if (node.op->traits.effect) return fmt::format("{} nodes with effects come before it", found);
  return fmt::format("{} calls on its channel come before it", found);
}

}  // namespace

std::string channel_name(const GraphNode& node) {
  if (!node.op->traits.collective || node.op->traits.effect) return {};
  std::string channel = node.op->queue ? std::string(node.op->queue(node.attrs).name) : "";
  const AttrKind* const kind = node.attrs.kind();
  if (kind && kind->type == typeid(CollectiveAttrs)) channel += "/" + node.attrs.as<CollectiveAttrs>().group;
  return channel.empty() ? "all" : channel;
}

void write_numbers(Program& program) {
  Counter counter(program);
  for (GraphNode& node : program.nodes) node.numbers = counter.next(node);
}

void check_numbers(const Program& program) {
  const bool has_numbers = std::any_of(program.nodes.begin(), program.nodes.end(),
                                       [](const GraphNode& node) { return !node.numbers.empty(); });
  if (!has_numbers) return;
  Counter counter(program);
  for (std::size_t n = 0; n < program.nodes.size(); ++n) {
    const GraphNode& node = program.nodes[n];
    const std::vector<std::int32_t> found = counter.next(node);
    const auto fail_with = [&](std::string text) {
      Error error("the captured graph is broken: " + text);
      error.add("node", fmt::format("{}: {}", n, describe_node(program, n)));
      throw error;
    };
    if (found.size() != node.numbers.size())
      fail_with(fmt::format("a node has {} numbers of what it was recorded to find, it needs {}", node.numbers.size(),
                            found.size()));
    for (std::size_t i = 0; i < found.size(); ++i)
      if (found[i] != node.numbers[i])
        fail_with(fmt::format("{}, it was recorded after {}", sentence(node, i, found[i]), node.numbers[i]));
  }
}

}  // namespace sherd
