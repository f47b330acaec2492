#include "runtime/cpu/kernels.h"

namespace sherd {

void register_cpu(OpTable& table) {
  cpu::register_pointwise(table);
  cpu::register_reduce(table);
  cpu::register_copy(table);
  cpu::register_matmul(table);
  cpu::register_index(table);
  cpu::register_norm(table);
  cpu::register_attention(table);
  cpu::register_loss(table);
  cpu::register_random(table);
  cpu::register_optimizer(table);
  cpu::register_collective(table);
}

}  // namespace sherd
