#pragma once
// A guard against silent corruption: what ranks hold copies of must have the same bits.
#include <string_view>
#include <vector>

#include "nn/checkpoint/training_state.h"

namespace sherd::ckpt {

/// Compares hashes of what several ranks hold: plain tensors, replicas of distributed ones, and `other`, text that must
/// be the same on all ranks. Reads all bytes of it once; what one rank alone holds is not read. Collective over
/// `group`, the ranks of the state; blocks. Throws Error, the same on every rank, naming the tensor and which of
/// its holders have which checksum. Nothing is compared on a ghost rank.
void check_replicas(const std::vector<nn::StateEntry>& state, std::string_view other, ProcessGroup& group);

}  // namespace sherd::ckpt
