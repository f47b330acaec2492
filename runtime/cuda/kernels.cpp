#include "runtime/cuda/kernels.h"

namespace sherd::cuda {

void register_kernels(OpTable& table) { cuda::register_attention(table); }

}  // namespace sherd::cuda
