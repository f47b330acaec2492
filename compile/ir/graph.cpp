#include "compile/ir/graph.h"

namespace sherd::ir {

TensorRef reference(const Tensor& tensor, ValueId value, std::int64_t base_bytes) {
  return {value, tensor.dtype(), tensor.shape(), tensor.strides(),
          tensor.offset() - base_bytes / byte_size(tensor.dtype())};
}

std::int64_t base_bytes(const Tensor& tensor) {
  const Tensor local = tensor.local();
  return local.offset() * byte_size(local.dtype());
}

bool is_sole_owner(const Tensor& tensor) {
  const TensorImpl& local = tensor.is_distributed() ? *tensor.impl()->local : *tensor.impl();
  return tensor.impl()->use_count() == 1 && local.use_count() == 1 && local.storage && local.storage->use_count() == 1;
}

}  // namespace sherd::ir
