#pragma once
// The op calls that are timed on a GPU, with the sizes of a 1.2 B parameter Llama: what to call, and how many bytes it
// must move at least.
#include <functional>
#include <string_view>
#include <vector>

#include "runtime/op/core/tensor.h"

namespace sherd::bench {

struct GpuOp {
  std::string_view name;     ///< "rms_norm.backward"; peers/gpu_ops.py knows the same names
  std::string_view summary;  ///< shapes and dtypes
  /// Makes the inputs on a device and returns the call. `small` is for machines where figures mean nothing.
  std::function<std::function<void()>(Device device, bool small)> prepare;
  double bytes = 0;  ///< read and written at least, full size; 0: not limited by memory
  double flops = 0;  ///< of calls that compute, full size
};

const std::vector<GpuOp>& gpu_ops();
/// Error naming the nearest.
const GpuOp& gpu_op(std::string_view name);

}  // namespace sherd::bench
