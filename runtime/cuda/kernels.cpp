#include "runtime/cuda/kernels.h"

namespace sherd::cuda {

void register_kernels(OpTable& table) {
  cuda::register_attention(table);
  cuda::register_matmul(table);
  cuda::register_pointwise(table);
  cuda::register_pointwise_unary(table);
  cuda::register_copy(table);
  cuda::register_cast(table);
  cuda::register_create(table);
  cuda::register_random(table);
  cuda::register_index(table);
  cuda::register_gather(table);
  cuda::register_topk(table);
  cuda::register_rope(table);
  cuda::register_reduce(table);
  cuda::register_argmax(table);
  cuda::register_softmax(table);
  cuda::register_norm(table);
  cuda::register_loss(table);
  cuda::register_optimizer(table);
  cuda::register_exact_sum(table);
}

}  // namespace sherd::cuda
