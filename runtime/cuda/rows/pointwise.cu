// Pointwise rows of two and three tensors.
#include "runtime/cuda/rows/pointwise_kernels.h"

namespace sherd::cuda {

void register_pointwise(OpTable& table) {
  detail::register_rows<2>(table);
  detail::register_rows<3>(table);
}

}  // namespace sherd::cuda
