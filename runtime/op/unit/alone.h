#pragma once
// What runs in place of a collective where one rank has all of it: its casts, scaling and accumulation, on the host or
// on a device.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/op/core/tensor.h"

namespace sherd {

/// A contiguous range of elements: dense 1-D tensors of equal length on one device.
struct AlonePart {
  Tensor in, out;
  DType wire{};  ///< reductions: the dtype that the gradient is rounded to
  bool accumulate = false;
  double scale = 1;  ///< reductions
};

/// Merges parts that are adjacent in both buffers: a group is then one launch, not one per parameter.
std::vector<AlonePart> joined(std::vector<AlonePart> parts);

/// out = cast(in). Queued on a device. Runs below capture, so that a graph records the calling row and no others.
void gather_alone(const std::vector<AlonePart>& parts);
/// out = cast(round_wire(in) * scale) [+ out]; 16-bit floats are scaled in f32. Queued as above.
void reduce_alone(const std::vector<AlonePart>& parts);

/// A range of host memory, by its addresses: for the thread of a queue.
struct HostPart {
  const std::byte* in;
  std::byte* out;
  std::int64_t count;
  DType in_dtype, wire, out_dtype;
  bool accumulate;
  double scale;
};
/// The same, of one range.
void reduce_on_host(const HostPart& part);

}  // namespace sherd
