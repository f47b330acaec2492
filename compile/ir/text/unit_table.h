#pragma once
// The layouts of units that a program's nodes name, with names of the program's own. Attributes hold interned layouts,
// so a program has no such table; its text has one.
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "compile/ir/program.h"
#include "runtime/op/unit/unit_layout.h"

namespace sherd::ir {

class UnitTable {
 public:
  struct Entry {
    std::string name;  ///< the layout's, with "~2" after it if another one has that
    const UnitLayout* layout;
  };

  UnitTable() = default;
  /// In the order in which nodes name them, so that equal programs call them alike on any rank.
  explicit UnitTable(const Program& program);

  std::span<const Entry> entries() const { return entries_; }
  /// Name of `layout`, which is in the table.
  const std::string& name_of(const UnitLayout& layout) const;

 private:
  void add(const UnitLayout& layout);

  std::vector<Entry> entries_;
  std::unordered_map<const UnitLayout*, std::size_t> indices_;  // into entries_
  std::unordered_set<std::string> taken_;
};

}  // namespace sherd::ir
