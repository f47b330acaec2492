#pragma once
// The CPU column of the op table, one registration per file of kernels. Conventions: outputs are dense (but for
// `copy`, whose output may be strided); inputs may have any strides unless the row's user function made them dense.
#include "runtime/op/op.h"

namespace sherd::cpu {

void register_pointwise(OpTable& table);
void register_reduce(OpTable& table);
void register_copy(OpTable& table);
void register_matmul(OpTable& table);
void register_index(OpTable& table);
void register_norm(OpTable& table);
void register_attention(OpTable& table);
void register_loss(OpTable& table);
void register_random(OpTable& table);
void register_optimizer(OpTable& table);
void register_collective(OpTable& table);

}  // namespace sherd::cpu
