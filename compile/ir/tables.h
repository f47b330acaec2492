#pragma once
#include "compile/ir/program.h"

namespace sherd::ir {

/// Whether the program's tables have such an entry; a slot that lives within the step is none of its table's.
inline bool has_value(const Program& program, ValueId id) {
  return id >= 0 && static_cast<std::size_t>(id) < program.values.size();
}
inline bool has_slot(const Program& program, int slot) {
  return slot >= 0 && static_cast<std::size_t>(slot) < program.slots.size() && !program.slot(slot).is_local;
}
inline bool has_layout(const Program& program, LayoutId id) {
  return id >= kPlain && id < static_cast<LayoutId>(program.layouts.size());
}

/// Rule 7 of verify(), what stands before the nodes: tables, guards, bindings and values. Throws Error naming the
/// entry.
void check_tables(const Program& program);

}  // namespace sherd::ir
