// Rows and scratch of attention; the work is in attention_forward.cpp and attention_backward.cpp.
#include "runtime/cpu/attention/attention.h"

#include "runtime/cpu/kernels.h"
#include "runtime/cpu/rows/rope.h"
#include "runtime/cpu/scratch.h"

namespace sherd::cpu {

std::int64_t attention_scratch(const InferCall& call) {
  std::int64_t bytes = 0;
  for (const TensorMeta& t : call.in) bytes += heads_scratch_bytes(t);
  return bytes;
}

std::int64_t attention_backward_scratch(const InferCall& call) {
  std::int64_t bytes = dense_scratch_bytes(call.in[5]);
  for (std::size_t i = 0; i < 5; ++i) bytes += heads_scratch_bytes(call.in[i]);
  return bytes;
}

void register_attention(OpTable& table) {
  table.kernel(op::scaled_dot_product_attention, Device::Kind::cpu, attention_forward_kernel, attention_scratch);
  table.kernel(op::scaled_dot_product_attention_backward, Device::Kind::cpu, attention_backward_kernel,
               attention_backward_scratch);
  register_rope(table);
}

}  // namespace sherd::cpu
