#pragma once
// Scalars that slots share while they are equal: parameters' counts of steps.
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "nn/checkpoint/training_state.h"

namespace sherd::ckpt {

/// Loads 0-d f32 entries with a default, which slots share while they are equal. Loading may separate slots and never
/// joins them: a captured step notices the one, not the other. The values that are loaded decide which storages there
/// are, not those of slots, which on a ghost rank have none.
class SharedScalars {
 public:
  /// What is loaded into an entry; nothing where that is not said: a default is meant, or what the slot has stays.
  using Scalar = std::function<std::optional<float>(const nn::StateEntry&)>;
  SharedScalars(const std::vector<nn::StateEntry>& state, Scalar scalar) : state_(state), scalar_(std::move(scalar)) {}
  void load(const nn::StateEntry& entry);

 private:
  /// The value that a shared slot has after the load: what is loaded into it, else what it has now.
  float value_of(const Slot& slot) const;

  const std::vector<nn::StateEntry>& state_;
  Scalar scalar_;
  std::map<std::pair<std::uint64_t, std::uint32_t>, Tensor> parts_;  // by the bytes and the value that slots had
};

}  // namespace sherd::ckpt
