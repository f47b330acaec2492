#include "nn/checkpoint/shared_scalars.h"

#include <algorithm>
#include <bit>

#include "runtime/op/rows/ops.h"

namespace sherd::ckpt {

void SharedScalars::load(const nn::StateEntry& entry) {
  const Tensor &now = entry.slot->value(), &usual = entry.usually->value();
  const std::optional<float> own = scalar_(entry);
  if (!own && is_usual(entry)) return;
  const float value = own ? *own : value_of(*entry.usually);
  Tensor& shared = parts_[{now.storage()->id(), std::bit_cast<std::uint32_t>(value)}];
  if (!shared.defined()) shared = to(Tensor::scalar(value), usual.device());
  entry.slot->set(shared);
}

float SharedScalars::value_of(const Slot& slot) const {
  const auto found = std::ranges::find(state_, &slot, &nn::StateEntry::slot);
  const std::optional<float> loaded = found == state_.end() ? std::nullopt : scalar_(*found);
  return loaded ? *loaded : slot.value().item<float>();
}

}  // namespace sherd::ckpt
