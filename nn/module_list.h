#pragma once
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
  const std::vector<M*>& items() const { return items_; }

 private:
  std::vector<M*> items_;
};

}  // namespace sherd::nn
