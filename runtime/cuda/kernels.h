#pragma once
// The CUDA column of the op table, one registration per file of kernels. Conventions are those of
// runtime/cpu/kernels.h: outputs are dense (but for `copy`), inputs may have any strides; everything is queued on
// context_of(call).stream() and nothing waits for the device. Workspace comes from Workspace or the row's scratch
// column.
#include "runtime/op/core/op.h"

namespace sherd::cuda {

/// One row's kernel.
struct KernelEntry {
  const Op& row;
  Kernel kernel;
};
inline void add_kernels(OpTable& table, std::span<const KernelEntry> entries) {
  for (const KernelEntry& entry : entries) table.kernel(entry.row, Device::Kind::cuda, entry.kernel);
}

void register_kernels(OpTable& table);

void register_attention(OpTable& table);
void register_matmul(OpTable& table);
void register_pointwise(OpTable& table);
void register_pointwise_unary(OpTable& table);
void register_copy(OpTable& table);
void register_cast(OpTable& table);
void register_create(OpTable& table);
void register_random(OpTable& table);
void register_index(OpTable& table);
void register_gather(OpTable& table);
void register_topk(OpTable& table);
void register_rope(OpTable& table);
void register_reduce(OpTable& table);
void register_argmax(OpTable& table);
void register_softmax(OpTable& table);
void register_norm(OpTable& table);
void register_loss(OpTable& table);
void register_optimizer(OpTable& table);
void register_exact_sum(OpTable& table);

}  // namespace sherd::cuda
