#include "runtime/op/rows/optimizer_extents.h"

#include "runtime/tensor/indices.h"

namespace sherd {

namespace {

bool follows(const OptimizerExtent& a, const OptimizerExtent& b, std::size_t lists) {
  if (a.dtype != b.dtype || a.grad_dtype != b.grad_dtype) return false;
  for (const std::size_t l : up_to(lists)) {
    const std::int64_t size = byte_size(l + 1 == lists ? a.grad_dtype : a.dtype);
    if (a.at[l] + a.count * size != b.at[l]) return false;
  }
  return true;
}

}  // namespace

std::vector<OptimizerExtent> optimizer_extents(std::span<const Tensor> in, std::size_t n, std::size_t lists) {
  std::vector<OptimizerExtent> extents;
  for (const std::size_t i : up_to(n)) {
    const TensorImpl &parameter = *in[i].impl(), &grad = *in[(lists - 1) * n + i].impl();
    if (parameter.numel == 0) continue;
    check(grad.contiguous, "gradient {} is not dense", i);
    OptimizerExtent e{{}, parameter.numel, parameter.meta.dtype, grad.meta.dtype};
    for (const std::size_t l : up_to(lists)) e.at[l] = static_cast<std::byte*>(in[l * n + i].raw());
    if (!extents.empty() && follows(extents.back(), e, lists)) extents.back().count += e.count;
    else extents.push_back(e);
  }
  return extents;
}

}  // namespace sherd
