#include "nn/optim/dense_copies.h"

#include <algorithm>

#include "runtime/op/rows/ops.h"
#include "runtime/tensor/indices.h"

namespace sherd::nn {

Tensor DenseCopies::of(const Tensor& value) {
  if (is_dense(value)) return value;
  const Tensor local = value.local();
  auto known = std::ranges::find_if(copies_, [&](const auto& each) { return each.first.impl() == local.impl(); });
  if (known == copies_.end()) known = copies_.insert(known, {local, contiguous(local.detach())});
  const Tensor& dense = known->second;
  return value.is_distributed() ? Tensor::distributed(value.shape(), value.layout(), dense) : dense;
}

void DenseCopies::store() const {
  for (const auto& [value, copy] : copies_) copy_into(value.detach(), copy);
}

// From the innermost dim on, each stride must step over all that the dims within it reach.
bool shares_bytes(const Tensor& tensor) {
  if (tensor.is_contiguous() || tensor.numel() == 0) return false;
  std::vector<std::pair<std::int64_t, std::int64_t>> dims;  // stride, size
  for (const int d : up_to(tensor.ndim()))
    if (tensor.size(d) > 1) dims.emplace_back(tensor.strides()[d], tensor.size(d));
  std::ranges::sort(dims);
  std::int64_t reach = 0;
  for (const auto& [stride, size] : dims) {
    if (stride <= reach) return true;
    reach += stride * (size - 1);
  }
  return false;
}

}  // namespace sherd::nn
