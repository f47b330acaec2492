#include "compile/ir/analysis/lifetimes.h"

#include <algorithm>

#include "compile/ir/analysis/loans.h"
#include "runtime/tensor/indices.h"

namespace sherd::ir {

std::vector<int> last_mentions(const Program& program) {
  std::vector<int> last(program.values.size(), -1);
  const auto touch = [&](ValueId value, std::size_t when) {
    if (value != kNoValue) last[static_cast<std::size_t>(value)] = static_cast<int>(when);
  };
  for (const std::size_t i : indices(program.nodes)) {
    const GraphNode& node = program.nodes[i];
    for (const TensorRef& ref : node.in) touch(ref.value, i);
    for (const TensorRef& ref : node.out) touch(ref.value, i);
    touch(node.scratch, i);
  }
  for (const GraphResult& result : program.results) touch(result.local.value, program.nodes.size());
  for (const SlotUpdate& update : program.updates) touch(update.result.local.value, program.nodes.size());
  return last;
}

std::vector<int> ends_of_lives(const Program& program) {
  std::vector<int> ends = last_mentions(program);
  if (!program.has_waits) return ends;
  Loans loans(program);
  for (const std::size_t i : indices(program.nodes)) loans.pass(i);
  const auto end = static_cast<int>(program.nodes.size());
  for (const std::size_t v : indices(ends))  // who used it last still does so as far as loans know
    for (const int item : loans.users(static_cast<ValueId>(v)))
      ends[v] = std::max(ends[v], loans.item(item).is_over() ? loans.item(item).ended_by : end);
  return ends;
}

void compute_lifetimes(Program& program) {
  const std::vector<int> ends = ends_of_lives(program);
  for (GraphNode& node : program.nodes) node.frees.clear();
  for (const std::size_t v : indices(ends)) {
    const bool is_freed = program.values[v].kind == ValueKind::temporary && ends[v] >= 0 &&
                          ends[v] < static_cast<int>(program.nodes.size());
    if (is_freed) program.nodes[static_cast<std::size_t>(ends[v])].frees.push_back(static_cast<ValueId>(v));
  }
}

}  // namespace sherd::ir
