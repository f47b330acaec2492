#pragma once
// Host values are those of the recorded call. Two calls that take the same path with the same values record the same
// program; where they do not, a replay would be wrong in silence.
#include <span>
#include <string>

#include "compile/ir/graph.h"

namespace sherd {

/// What differs first between two recordings of one step that fit the same call: "in blocks.0.mlp, mul: other was 1
/// and is 2". Compares rows, attributes, what they read and write, what the step leaves, and the bytes of tensors that
/// the program made on the host; not the accounts that memory was in. `arguments` are the second call's. Empty:
/// nothing. Waits for constants on a device.
std::string recording_difference(const ir::Graph& first, const ir::Graph& second, std::span<const Tensor> arguments);

/// Whether both began with the same gradients held by their slots alone, which are added to in place, and the same held
/// by somebody else too.
bool are_held_alike(const ir::Graph& first, const ir::Graph& second);

}  // namespace sherd
