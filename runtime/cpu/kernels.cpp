#include "runtime/cpu/kernels.h"

#include "runtime/comm/group/rank_kernels.h"
#include "runtime/cpu/simd.h"
#include "runtime/os/instruction_level.h"

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
  cpu::register_exact_sum(table);
}

constexpr Kernels kRows{register_rows, gemm_blocked, kMultipliesBf16};
constexpr comm::RankKernels kRanks{reduce_ranks, cast_floats};
constexpr LevelKernels kKernels{&kRows, &kRanks};

}  // namespace

/// The level's entry point, which the build gives the level's name; all other symbols of a level become local.
extern "C" const LevelKernels* sherd_cpu_kernels() { return &kKernels; }

}  // namespace sherd::cpu
