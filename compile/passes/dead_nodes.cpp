#include "compile/passes/dead_nodes.h"

#include <algorithm>

#include "compile/ir/rewrite.h"

namespace sherd::ir {

void drop_dead_nodes(Program& program) {
  std::vector<bool> is_mentioned(program.values.size(), false), is_dead(program.nodes.size(), false);
  const auto mention = [&](const TensorRef& ref) {
    if (ref.defined()) is_mentioned[static_cast<std::size_t>(ref.value)] = true;
  };
  for (const GraphResult& result : program.results) mention(result.local);
  for (const SlotUpdate& update : program.updates) mention(update.result.local);
  for (std::size_t i = program.nodes.size(); i-- > 0;) {
    const GraphNode& node = program.nodes[i];
    const Traits& traits = node.op->traits;
    const bool only_makes = !traits.effect && !traits.collective && !traits.waits && node.num_mutated == 0;
    is_dead[i] = only_makes && std::ranges::all_of(node.out, [&](const TensorRef& out) {
                   return program.value(out.value).kind == ValueKind::temporary &&
                          !is_mentioned[static_cast<std::size_t>(out.value)];
                 });
    if (is_dead[i]) continue;
    std::ranges::for_each(node.in, mention);
    std::ranges::for_each(node.out, mention);
  }
  if (std::ranges::find(is_dead, true) == is_dead.end()) return;
  erase_nodes(program, is_dead);
  drop_unmentioned(program);
  settle(program);
}

}  // namespace sherd::ir
