// A temporary lives from its first write to its last mention; where waits are nodes and a queue uses it then, to the
// wait.
#include "compile/ir/loans.h"

namespace sherd {

namespace {

constexpr int kNever = -1, kKept = -2;

std::vector<int> last_mentions(const Program& program) {
  std::vector<int> last(program.values.size(), kNever);
  const auto touch = [&](ValueId value, int when) {
    if (value != kNoValue) last[static_cast<std::size_t>(value)] = when;
  };
  for (std::size_t i = 0; i < program.nodes.size(); ++i) {
    const GraphNode& node = program.nodes[i];
    for (const TensorRef& ref : node.in) touch(ref.value, static_cast<int>(i));
    for (const TensorRef& ref : node.out) touch(ref.value, static_cast<int>(i));
    touch(node.scratch, static_cast<int>(i));
  }
  for (const GraphResult& result : program.results) touch(result.local.value, kKept);
  for (const SlotUpdate& update : program.updates) touch(update.result.local.value, kKept);
  for (std::size_t v = 0; v < last.size(); ++v)
    if (program.values[v].kind != ValueKind::temporary) last[v] = kKept;
  return last;
}

}  // namespace

void compute_lifetimes(Program& program) {
  const std::vector<int> last = last_mentions(program);
  std::vector<std::vector<ValueId>> dying(program.nodes.size());  // by node: mentioned there last
  for (std::size_t v = 0; v < last.size(); ++v)
    if (last[v] >= 0) dying[static_cast<std::size_t>(last[v])].push_back(static_cast<ValueId>(v));
  for (std::size_t i = 0; i < program.nodes.size(); ++i) program.nodes[i].frees = dying[i];
  if (!program.has_waits) return;
  Loans loans(program);
  std::vector<ValueId> lent;  // not mentioned any more
  for (std::size_t i = 0; i < program.nodes.size(); ++i) {
    loans.pass(i);
    lent.insert(lent.end(), dying[i].begin(), dying[i].end());
    std::vector<ValueId>& frees = program.nodes[i].frees;
    frees.clear();
    std::erase_if(lent, [&](ValueId v) {
      const bool is_over = !loans.is_lent(v);
      if (is_over) frees.push_back(v);
      return is_over;
    });
  }
}

}  // namespace sherd
