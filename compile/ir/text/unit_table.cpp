#include "compile/ir/text/unit_table.h"

#include "runtime/op/attrs/attr_text.h"

namespace sherd::ir {

// Whatever attributes are written, their writer asks what each layout is called.
UnitTable::UnitTable(const Program& program) {
  const UnitNamer add_named = [this](const UnitLayout& layout) {
    add(layout);
    return std::string();
  };
  for (const GraphNode& node : program.nodes) {
    if (node.attrs.empty()) continue;
    AttrWriter writer(false, add_named);
    writer.fields(*node.attrs.kind(), AttrsView(node.attrs).object());
  }
}

const std::string& UnitTable::name_of(const UnitLayout& layout) const { return entries_[indices_.at(&layout)].name; }

void UnitTable::add(const UnitLayout& layout) {
  if (!indices_.try_emplace(&layout, entries_.size()).second) return;
  std::string name = layout.name;
  for (int i = 2; !taken_.insert(name).second; ++i) name = fmt::format("{}~{}", layout.name, i);
  entries_.push_back({std::move(name), &layout});
}

}  // namespace sherd::ir
