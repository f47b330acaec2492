#include "runtime/cpu/kernels.h"

#include "runtime/cpu/simd.h"

namespace sherd::cpu {

namespace {

void register_rows(OpTable& table) {
  cpu::register_pointwise(table);
  cpu::register_reduce(table);
  cpu::register_copy(table);
  cpu::register_matmul(table);
  cpu::register_index(table);
  cpu::register_gather(table);
  cpu::register_topk(table);
  cpu::register_var(table);
  cpu::register_norm(table);
  cpu::register_attention(table);
  cpu::register_loss(table);
  cpu::register_random(table);
  cpu::register_optimizer(table);
}

constexpr Kernels kKernels{register_rows, gemm_blocked, reduce_ranks, cast_floats, kMultipliesBf16};

}  // namespace

/// The level's entry point, which the build gives the level's name; all other symbols of a level become local.
extern "C" const Kernels* sherd_cpu_kernels() { return &kKernels; }

}  // namespace sherd::cpu
