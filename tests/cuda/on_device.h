#pragma once
// Tensors for tests of the device, with the strides and offsets that they have on the host.
#include <vector>

#include "runtime/op/rows/ops.h"

namespace sherd::testing {

/// `t` on a CUDA device behind the same strides, offset and neighbours.
inline Tensor on_device(const Tensor& t, Device cuda = Device::cuda(0)) {
  if (!t.defined() || t.numel() == 0 || t.is_contiguous()) return t.defined() ? to(t, cuda) : t;
  const std::int64_t elements = t.storage()->bytes() / byte_size(t.dtype());
  const Tensor all = to(Tensor::over(t.storage(), {elements}, {1}, 0, t.dtype()), cuda);
  return Tensor::make(all.storage(), t.shape(), t.strides(), t.offset(), t.dtype(), cuda);
}
/// Each as to() moves it.
inline std::vector<Tensor> all_to_device(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> moved;
  for (const Tensor& t : tensors) moved.push_back(to(t, Device::cuda(0)));
  return moved;
}
inline Tensor on_host(const Tensor& t) { return to(t, Device::cpu()); }

}  // namespace sherd::testing
