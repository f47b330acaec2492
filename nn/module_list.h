#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "nn/module.h"

namespace sherd::nn {

/// A list of modules, of one class or, ModuleList<>, of any: children "0", "1", ... that the owner calls. It has no
/// forward of its own; fully_shard refuses it.
template <class M = Module>
class ModuleList;

template <>
class ModuleList<Module> : public Module {
 public:
  template <class T, class... Args>
  T& append(Args&&... args) {
    return add<T>(std::to_string(children().size()), std::forward<Args>(args)...);
  }
};

template <class M>
class ModuleList : public ModuleList<> {
 public:
  template <class... Args>
  M& append(Args&&... args) {
    M& item = ModuleList<>::append<M>(std::forward<Args>(args)...);
    items_.push_back(&item);
    return item;
  }
  const std::vector<M*>& items() const {
    note_parts_read();
    return items_;
  }

 private:
  std::vector<M*> items_;
};

bool is_container(const Module& module);
/// The items of a model's lists in its order, its blocks; lists inside of items are theirs. Error if there is none:
/// `who` asks.
std::vector<Module*> listed_modules(Module& model, std::string_view who);

}  // namespace sherd::nn
