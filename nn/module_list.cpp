#include "nn/module_list.h"

namespace sherd::nn {

namespace {

void find_blocks(Module& m, std::vector<Module*>& blocks) {
  for (const auto& child : m.children()) {
    if (is_container(m) && !is_container(*child)) blocks.push_back(child.get());
    else find_blocks(*child, blocks);
  }
}

}  // namespace

bool is_container(const Module& module) { return dynamic_cast<const ModuleList<>*>(&module) != nullptr; }

std::vector<Module*> listed_modules(Module& model, std::string_view who) {
  std::vector<Module*> blocks;
  find_blocks(model, blocks);
  check(!blocks.empty(), "{}: the model has no list of modules (ModuleList) whose items would be its blocks", who);
  return blocks;
}

}  // namespace sherd::nn
