#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "nn/module.h"

namespace sherd::nn {

/// A container without a forward of its own: children "0", "1", ... are called by the owner. fully_shard refuses it.
class ModuleContainer : public Module {};

template <class M>
class ModuleList : public ModuleContainer {
 public:
  template <class... Args>
  M& append(Args&&... args) {
    M& item = add<M>(std::to_string(children().size()), std::forward<Args>(args)...);
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
