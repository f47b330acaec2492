#include "runtime/cuda/rows/dense.h"

#include "runtime/cuda/rows/copy.h"

namespace sherd::cuda {

Dense::Dense(Context& context, const Tensor& tensor)
    : copy_(context, !tensor.defined() || tensor.is_contiguous() ? 0 : tensor.bytes()),
      data_(tensor.defined() ? tensor.raw() : nullptr) {
  if (copy_.bytes() == 0) return;
  const Layout dense{copy_.data(), contiguous_strides(tensor.shape())};
  strided_copy(context, tensor.dtype(), tensor.shape(), layout_of(tensor), dense);
  data_ = copy_.data();
}

}  // namespace sherd::cuda
