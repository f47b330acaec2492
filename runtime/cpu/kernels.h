#pragma once
// The CPU column of the op table, one registration per file of kernels, and the little else that the seams need from a
// level. Conventions: outputs are dense (but for `copy`, whose output may be strided); inputs may have any strides
// unless the row's user function made them dense.
#include "runtime/comm/board/elements.h"
#include "runtime/cpu/gemm/gemm.h"
#include "runtime/op/core/op.h"

namespace sherd::cpu {

/// What one instruction-set level (os/instruction_level.h) offers to the rows.
struct Kernels {
  void (*register_rows)(OpTable& table);
  /// One problem, K > 0, on the threads of parallel.h.
  void (*gemm_blocked)(const Gemm& g, const void* a, const void* b, void* c);
  /// Whether the level's CPUs multiply bf16 themselves.
  bool multiplies_bf16;
};

/// Kernels of this process's level. Throws Error, each time, if it has none.
const Kernels& kernels();

void gemm_blocked(const Gemm& g, const void* a, const void* b, void* c);

void register_pointwise(OpTable& table);
void register_reduce(OpTable& table);
void register_copy(OpTable& table);
void register_matmul(OpTable& table);
void register_index(OpTable& table);
void register_gather(OpTable& table);
void register_topk(OpTable& table);
void register_var(OpTable& table);
void register_norm(OpTable& table);
void register_attention(OpTable& table);
void register_loss(OpTable& table);
void register_random(OpTable& table);
void register_optimizer(OpTable& table);
void register_exact_sum(OpTable& table);
void register_collective(OpTable& table);  // not a kernel: it calls the process group

void reduce_ranks(std::span<const std::byte* const> inputs, std::byte* out, std::int64_t count,
                  const comm::Reduction& reduction, bool streams);
void cast_floats(DType to_dtype, void* to, DType from_dtype, const void* from, std::int64_t count);

}  // namespace sherd::cpu
