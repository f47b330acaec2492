#include "compile/ir/rewrite.h"

#include <algorithm>

#include "compile/ir/analysis/lifetimes.h"
#include "compile/ir/analysis/numbers.h"
#include "runtime/tensor/indices.h"

namespace sherd::ir {

ValueId add_like(Program& program, ValueId value) {
  const auto id = static_cast<ValueId>(program.values.size());
  Value fresh = program.value(value);
  fresh.place = kNoValue;
  fresh.home.value = id;
  program.values.push_back(std::move(fresh));
  return id;
}

GraphNode clone_node(Program& program, const GraphNode& node) {
  check(node.num_mutated == 0 && !node.accumulate && !node.op->traits.effect,
        "{} writes what it finds: a node that does so cannot be repeated", node.op->name);
  GraphNode clone = node;
  clone.frees.clear();
  clone.numbers.clear();
  clone.scratch = kNoValue;
  for (TensorRef& out : clone.out) {
    out.value = add_like(program, out.value);
    program.value(out.value).home = out;
  }
  return clone;
}

void renumber(Program& program, std::span<const ValueId> holder) {
  std::vector<ValueId> number(holder.size(), kNoValue);
  std::vector<Value> values;
  values.reserve(holder.size());
  for (const std::size_t v : indices(holder)) {
    if (holder[v] != static_cast<ValueId>(v)) continue;
    number[v] = static_cast<ValueId>(values.size());
    values.push_back(std::move(program.values[v]));
    if (values.back().home.defined()) values.back().home.value = number[v];
  }
  const auto renamed = [&](ValueId v) {
    const ValueId held_by = v == kNoValue ? v : holder[static_cast<std::size_t>(v)];
    return held_by == kNoValue ? kNoValue : number[static_cast<std::size_t>(held_by)];
  };
  const auto rename = [&](TensorRef& ref) { ref.value = renamed(ref.value); };
  for (GraphNode& node : program.nodes) {
    for (TensorRef& ref : node.in) rename(ref);
    for (TensorRef& ref : node.out) rename(ref);
    for (auto* list : {&node.restores, &node.releases})
      for (ValueId& v : *list) v = renamed(v);
    node.scratch = renamed(node.scratch);
  }
  for (Binding& binding : program.bindings) binding.value = renamed(binding.value);
  for (GraphResult& result : program.results) rename(result.local);
  for (SlotUpdate& update : program.updates) rename(update.result.local);
  for (Value& value : values) value.place = renamed(value.place);
  program.values = std::move(values);
}

void drop_unmentioned(Program& program) {
  const std::vector<int> last = last_mentions(program);
  std::vector<ValueId> holder(program.values.size());
  for (const std::size_t v : indices(holder)) {
    const bool stays = last[v] >= 0 || program.values[v].kind != ValueKind::temporary;
    holder[v] = stays ? static_cast<ValueId>(v) : kNoValue;
  }
  renumber(program, holder);
}

void erase_nodes(Program& program, const std::vector<bool>& erased) {
  std::size_t index = 0;
  std::erase_if(program.nodes, [&](const GraphNode&) { return erased[index++]; });
}

void settle(Program& program) {
  compute_lifetimes(program);
  write_numbers(program);
}

}  // namespace sherd::ir
