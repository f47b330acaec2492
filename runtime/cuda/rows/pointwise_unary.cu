// Pointwise rows of one tensor; a file of their own, so that the two compile side by side.
#include "runtime/cuda/rows/pointwise_kernels.h"

namespace sherd::cuda {

void register_pointwise_unary(OpTable& table) { detail::register_rows<1>(table); }

}  // namespace sherd::cuda
