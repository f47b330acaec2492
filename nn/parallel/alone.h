#pragma once
// What a group of one rank does where others communicate: the casts, the scale and the sums of a collective, on the
// host or on a device.
#include <vector>

#include "runtime/op/tensor.h"

namespace sherd::nn {

/// One run of elements: dense 1-D tensors of equal length on one device.
struct AlonePart {
  Tensor in, out;
  DType wire{};  ///< reductions: what the gradient is rounded to on its way
  bool accumulate = false;
};

/// Parts that follow one another in both buffers become one: a group is then one launch, not one per parameter.
std::vector<AlonePart> joined(std::vector<AlonePart> parts);

/// out = cast(in). On a device queued; below capture, so that a recording sees the row that called and no others.
void gather_alone(const std::vector<AlonePart>& parts);
/// out = cast(round_wire(in) * scale) [+ out]; 16-bit floats are scaled in f32. Queued as above.
void reduce_alone(const std::vector<AlonePart>& parts, double scale);

}  // namespace sherd::nn
