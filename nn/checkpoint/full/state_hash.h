#pragma once
// One number for all that a training has: the SHA-256 of names, dtypes, shapes and values, whatever ranks hold them.
#include <string>
#include <vector>

#include "nn/checkpoint/load/checkpoint_reader.h"
#include "nn/checkpoint/training_state.h"

namespace sherd::ckpt {

/// 64 hexadecimal digits on rank 0, empty on the others: of a line "name dtype[shape] SHA-256 of its bytes" for each
/// full tensor of `state`, in the order of their names in files ("w", "buffer/seen", "optim.m/w"). Collective over
/// `group` as visit_full_state(), whose Errors it has; one full tensor is in rank 0's memory at a time.
std::string hash_state(const std::vector<nn::StateEntry>& state, ProcessGroup& group);
/// The same of a save: that of the state which was saved. Reads every byte, on one rank; throws as read_box().
std::string hash_save(const CheckpointReader& save);

}  // namespace sherd::ckpt
