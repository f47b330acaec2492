#include "compile/ir/analysis/numbers.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <string>

#include "compile/ir/analysis/access.h"
#include "compile/ir/text/print.h"
#include "runtime/comm/group/lanes.h"
#include "runtime/tensor/indices.h"

namespace sherd::ir {

namespace {

// The writes of one root's bytes. Only writes cut it, and a cut stays, so what a node finds cut in its bytes depends on
// the writes of them alone, in whatever order those of different bytes came.
class WriteCounts {
 public:
  std::int32_t number_of(const ByteRanges::Range& bytes) const {
    if (parts_.empty()) return 0;
    const std::size_t last = after(bytes.second);
    std::size_t at = after(bytes.first + 1) - 1;
    if (at + 1 == last) return parts_[at].writes;
    std::uint64_t hash = 0;
    for (; at < last; ++at) {
      const std::int64_t from = std::max(parts_[at].first, bytes.first);
      for (const std::int64_t word : {from, std::int64_t{parts_[at].writes}})
        hash = std::rotl((hash ^ static_cast<std::uint64_t>(word)) * 0x9e3779b97f4a7c15u, 29);
    }
    return kMixed | static_cast<std::int32_t>((hash ^ (hash >> 32)) & (kMixed - 1));
  }

  void add(const ByteRanges::Range& bytes) {
    if (parts_.empty()) {
      parts_.reserve(3);  // most bytes are written whole: before, these, after
      parts_.push_back({std::numeric_limits<std::int64_t>::min(), 0});
    }
    const std::size_t first = cut(bytes.first), last = cut(bytes.second);
    for (const std::size_t i : Numbers<std::size_t>(first, last)) ++parts_[i].writes;
  }

 private:
  struct Part {
    std::int64_t first;  // up to the next one
    std::int32_t writes;
  };
  // Index of the first part that begins at `at` or later.
  std::size_t after(std::int64_t at) const {
    const auto found = std::ranges::lower_bound(parts_, at, {}, &Part::first);
    return static_cast<std::size_t>(found - parts_.begin());
  }
  // Index of the part that begins at `at`; makes it if there is none.
  std::size_t cut(std::int64_t at) {
    const std::size_t index = after(at);
    if (index == parts_.size() || parts_[index].first != at)
      parts_.insert(parts_.begin() + static_cast<std::ptrdiff_t>(index), {at, parts_[index - 1].writes});
    return index;
  }

  std::vector<Part> parts_;  // none before the first write
};

class Counter {
 public:
  explicit Counter(const Program& program) : program_(program), roots_(program), writes_(program.values.size()) {}

  /// The numbers of the next node in execution order, in place of what `numbers` holds.
  void next(const GraphNode& node, std::vector<std::int32_t>& numbers) {
    list_.clear();
    append_accesses(program_, roots_, node, list_);
    numbers.assign(node.in.size() + node.out.size() + node.restores.size() + node.releases.size(), 0);
    for (const Access& access : list_) {
      if (access.kind == AccessKind::awaited) continue;
      const std::int32_t number = writes_[static_cast<std::size_t>(access.root)].number_of(access.bytes);
      if (access.kind == AccessKind::restored || access.kind == AccessKind::released)
        note_presence(node, access, number, numbers);
      else numbers[place_of(node, access)] = number;
    }
    for (const Access& access : list_)
      if (access.writes) writes_[static_cast<std::size_t>(access.root)].add(access.bytes);
    if (node.op->traits.waits) return;
    const std::string_view lane = lane_of(node);
    const std::int32_t calls = lane.empty() ? 0 : num_calls_[lane]++;
    if (node.op->traits.effect) numbers.push_back(num_effects_++);
    else if (!lane.empty()) numbers.push_back(calls);
  }

 private:
  static std::size_t place_of(const GraphNode& node, const Access& access) {
    const bool is_output = access.kind == AccessKind::output || access.kind == AccessKind::accumulated;
    return static_cast<std::size_t>(access.operand) + (is_output ? node.in.size() : 0);
  }
  static void note_presence(const GraphNode& node, const Access& access, std::int32_t number,
                            std::vector<std::int32_t>& numbers) {
    std::size_t at = node.in.size() + node.out.size();
    for (const std::vector<ValueId>* values : {&node.restores, &node.releases})
      for (const ValueId v : *values) {
        if (v == access.value) numbers[at] = number;
        ++at;
      }
    numbers[static_cast<std::size_t>(access.operand)] = number;
  }

  const Program& program_;
  const ByteRoots roots_;
  std::vector<Access> list_;
  std::vector<WriteCounts> writes_;  // by root
  std::int32_t num_effects_ = 0;
  std::map<std::string_view, std::int32_t> num_calls_;  // by lane
};

// What number i of a node says, with the number found.
std::string sentence(const GraphNode& node, std::size_t i, std::int32_t found) {
  const std::string writes = found < kMixed ? fmt::format("{} writes", found) : "other writes";
  if (i < node.in.size()) return fmt::format("input {} comes after {} of its bytes", i, writes);
  i -= node.in.size();
  if (i < node.out.size()) return fmt::format("output {} comes after {} of its bytes", i, writes);
  i -= node.out.size();
  if (i < node.restores.size() + node.releases.size()) return fmt::format("data comes or goes after {} of it", writes);
  if (node.op->traits.effect) return fmt::format("{} nodes with effects come before it", found);
  return fmt::format("{} calls on its lane come before it", found);
}

}  // namespace

std::string_view lane_of(const GraphNode& node) {
  if (node.op->queue) return node.op->queue(node.attrs).name;
  return node.op->traits.collective ? kCollectiveQueue : std::string_view();
}

void write_numbers(Program& program) {
  Counter counter(program);
  for (GraphNode& node : program.nodes) counter.next(node, node.numbers);
}

void check_numbers(const Program& program) {
  const bool has_numbers = std::any_of(program.nodes.begin(), program.nodes.end(),
                                       [](const GraphNode& node) { return !node.numbers.empty(); });
  if (!has_numbers) return;
  Counter counter(program);
  std::vector<std::int32_t> found;
  for (const std::size_t n : indices(program.nodes)) {
    const GraphNode& node = program.nodes[n];
    counter.next(node, found);
    const auto fail_with = [&](std::string text) {
      Error error("the captured graph is broken: " + text);
      error.add("node", fmt::format("{}: {}", n, describe_node(program, n)));
      throw error;
    };
    if (found.size() != node.numbers.size())
      fail_with(fmt::format("a node has {} numbers of what it was recorded to find, it needs {}", node.numbers.size(),
                            found.size()));
    for (const std::size_t i : indices(found))
      if (found[i] != node.numbers[i])
        fail_with(fmt::format("{}, it was recorded after {}", sentence(node, i, found[i]),
                              node.numbers[i] < kMixed ? std::to_string(node.numbers[i]) : "a mix of them"));
  }
}

}  // namespace sherd::ir
