#include "nn/memory_names.h"

#include <map>
#include <utility>

#include "runtime/exec/context.h"

namespace sherd::nn {

namespace {

struct Holder {
  std::string first;
  int others = 0;
};
using Holders = std::map<std::uint64_t, Holder>;  // by number of the storage

void add(Holders& holders, const Tensor& tensor, const std::string& name) {
  if (!tensor.defined() || tensor.is_meta()) return;
  const Tensor local = tensor.local();
  if (!local.defined() || local.is_meta() || !local.storage()) return;
  const auto [place, is_new] = holders.try_emplace(local.storage()->id(), Holder{name});
  if (!is_new) ++place->second.others;
}

void name_by_slots(MemoryLog::Picture& picture, const Module* model) {
  Holders holders;
  for (const Slot* slot : living_slots()) {
    if (!slot->has_value()) continue;
    add(holders, slot->value(), slot->name());
    add(holders, slot->grad(), "gradient of " + slot->name());
  }
  if (model)
    for (const Parameter* p : model->parameters())
      if (p->has_value() && p->sharded_value().impl() != p->value().impl()) add(holders, p->sharded_value(), p->name());
  for (MemoryLog::Block& block : picture.blocks) {
    if (!block.name.empty()) continue;
    const auto found = holders.find(block.storage);
    if (found == holders.end()) continue;
    const auto& [first, others] = found->second;
    block.name = others == 0 ? first : fmt::format("{} and {} more", first, others);
  }
}

}  // namespace

MemoryLog::Namer names_by_slots(std::function<const Module*()> model) {
  return [model = std::move(model)](MemoryLog::Picture& picture) { name_by_slots(picture, model ? model() : nullptr); };
}

}  // namespace sherd::nn
