#pragma once
// What differs between two saves, tensor by tensor: whoever sharded them, over however many ranks.
#include <cstdint>
#include <functional>
#include <string>

#include "nn/checkpoint/load/checkpoint_reader.h"

namespace sherd::ckpt {

enum class Likeness { equal, values, form, only_first, only_second };

struct TensorDifference {
  std::string kind, name;
  Likeness likeness = Likeness::equal;
  std::string forms;           ///< both, "f32[4,6] and bf16[4,6]"; of one where the other save has none
  std::int64_t elements = 0;   ///< of the tensor
  std::int64_t different = 0;  ///< elements of other bits
  double largest = 0;          ///< difference of two elements; infinity where one is NaN or infinite
};

/// Calls `use` for every tensor of either save, in the order of kinds and names. Holds at most 128 MiB of values at a
/// time. Throws Error naming file and tensor: damaged bytes.
void compare_saves(const CheckpointReader& first, const CheckpointReader& second,
                   const std::function<void(const TensorDifference&)>& use);

}  // namespace sherd::ckpt
