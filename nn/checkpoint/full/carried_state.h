#pragma once
// A training state in plain memory, on its way from the objects of one group of ranks to those of the next.
//
//   old model, optimizer --take()--> bytes --give()--> new model, optimizer --broadcast--> those of ranks without bytes
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nn/checkpoint/training_state.h"
#include "runtime/comm/group/process_group.h"

namespace sherd::ckpt {

/// Ranks that hold the same: one of them has what others may lack.
struct StateHolders {
  ProcessGroup& group;
  int root = 0;  ///< has bytes
};

class CarriedState {
 public:
  /// Nothing: of a rank that was not there before.
  CarriedState() = default;
  /// Copies this rank's shards and plain tensors to memory of the process, none of the rank's account: as many bytes
  /// as a save of this rank alone. The group may have failed. Local; waits for this rank's queues. Error naming a value
  /// that a step has left half changed.
  static CarriedState take(const std::vector<nn::StateEntry>& state);

  bool is_empty() const { return values_.empty(); }
  /// Fills the slots of `state`, which have the layout that they had. With `holders` their root's values are everyone's
  /// in that group, also of ranks that have nothing: collective over it, a broadcast for each value. Error for other
  /// names, types or sizes.
  void give(const std::vector<nn::StateEntry>& state, const std::optional<StateHolders>& holders = std::nullopt) const;

 private:
  struct Value {
    std::string kind, name;
    DType dtype = DType::f32;
    std::size_t bytes = 0;
    std::unique_ptr<std::byte[]> data{};
    std::optional<float> scalar{};  ///< of an entry with a default
  };
  const Value* at(std::size_t index, const nn::StateEntry& entry) const;
  std::vector<std::optional<float>> scalars_of(const std::vector<nn::StateEntry>& state,
                                               const std::optional<StateHolders>& holders) const;
  std::vector<Value> values_;  // in the order of the state
};

}  // namespace sherd::ckpt
