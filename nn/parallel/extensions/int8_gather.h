#pragma once
// Weights gathered in 8 bits, as ZeRO++ does (Wang et al. 2023): an example of a gather transform.
//
//   units(model).set_gather_transform(int8_gather());
//
// Matrices and larger tensors travel as 8-bit values and a scale for each block (blocks.h); vectors (norms, biases) as
// they are: they are few bytes. All ranks, the owner too, compute with the decoded values; the optimizer updates exact
// ones. Of N elements in b blocks a gather moves N + 4 b bytes.
#include "nn/parallel/extensions/blocks.h"
#include "nn/parallel/shard/gather/unit_gather.h"

namespace sherd::nn {

/// Error as quantize_blocks() for `block`. Parameters of f64 and of whole numbers travel as they are.
GatherTransform int8_gather(int block = kQuantizationBlock);

}  // namespace sherd::nn
