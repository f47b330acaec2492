#include "nn/tensor_map.h"

#include "runtime/op/rows/ops.h"

namespace sherd::nn {

void cast_floating(Tensor& tensor, DType dtype) {
  if (tensor.defined() && is_floating(tensor.dtype()) && tensor.dtype() != dtype)
    tensor = cast(std::move(tensor), dtype);
}

}  // namespace sherd::nn
