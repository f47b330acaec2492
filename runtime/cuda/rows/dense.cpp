#include "runtime/cuda/rows/dense.h"

namespace sherd::cuda {

Dense::Dense(const KernelCall& call, const Tensor& tensor) : tensor_(tensor) {
  if (!tensor.defined() || tensor.is_contiguous()) return;
  const Kernel kernel = kernels_of(op::copy).kernel[static_cast<std::size_t>(Device::Kind::cuda)];
  if (!kernel) fail("{} of strided {} needs a cuda kernel for copy", call.op.name, describe(tensor));
  tensor_ = Tensor::empty(tensor.shape(), tensor.dtype(), tensor.device(), MemoryCategory::workspace);
  kernel({op::copy, {&tensor, 1}, {&tensor_, 1}, {}, {.device = call.exec.device}});
}

}  // namespace sherd::cuda
