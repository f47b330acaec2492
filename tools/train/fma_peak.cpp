// Each loop keeps 16 chains of dependent multiply-adds going: more than latency x ports of today's x86 cores, and few
// enough to stay in registers. One function per instruction set, chosen by what the CPU says.
#include "tools/train/fma_peak.h"

#include <immintrin.h>

#include <chrono>
#include <optional>

namespace sherd::train {

namespace {

constexpr int kChains = 16;

// An empty asm claims to change each chain before the loop and to read it after, so that none is merged or dropped.
__attribute__((target("avx512f"))) void multiply_add_512(std::int64_t loops) {
  __m512 chain[kChains];
  const __m512 a = _mm512_set1_ps(0.5f), b = _mm512_set1_ps(0.25f);
#pragma GCC unroll 16
  for (int c = 0; c < kChains; ++c) __asm__ volatile("" : "=v"(chain[c]) : "0"(b));
  for (std::int64_t i = 0; i < loops; ++i)
#pragma GCC unroll 16
    for (int c = 0; c < kChains; ++c) chain[c] = _mm512_fmadd_ps(chain[c], a, b);
#pragma GCC unroll 16
  for (int c = 0; c < kChains; ++c) __asm__ volatile("" ::"v"(chain[c]));
}

__attribute__((target("avx2,fma"))) void multiply_add_256(std::int64_t loops) {
  constexpr int kFewer = 12;  // 16 registers in all
  __m256 chain[kFewer];
  const __m256 a = _mm256_set1_ps(0.5f), b = _mm256_set1_ps(0.25f);
#pragma GCC unroll 16
  for (int c = 0; c < kFewer; ++c) __asm__ volatile("" : "=x"(chain[c]) : "0"(b));
  for (std::int64_t i = 0; i < loops; ++i)
#pragma GCC unroll 16
    for (int c = 0; c < kFewer; ++c) chain[c] = _mm256_fmadd_ps(chain[c], a, b);
#pragma GCC unroll 16
  for (int c = 0; c < kFewer; ++c) __asm__ volatile("" ::"x"(chain[c]));
}

__attribute__((target("avx512f,avx512bf16"))) void dot_products_bf16(std::int64_t loops) {
  __m512 chain[kChains];
  const __m512 one = _mm512_set1_ps(0.5f);
  const __m512bh a = _mm512_cvtne2ps_pbh(one, one);
#pragma GCC unroll 16
  for (int c = 0; c < kChains; ++c) __asm__ volatile("" : "=v"(chain[c]) : "0"(one));
  for (std::int64_t i = 0; i < loops; ++i)
#pragma GCC unroll 16
    for (int c = 0; c < kChains; ++c) chain[c] = _mm512_dpbf16_ps(chain[c], a, a);
#pragma GCC unroll 16
  for (int c = 0; c < kChains; ++c) __asm__ volatile("" ::"v"(chain[c]));
}

struct Loop {
  void (*run)(std::int64_t loops);
  double flops;  ///< of one iteration
};

std::optional<Loop> widest(DType kind) {
  if (kind == DType::bf16 && __builtin_cpu_supports("avx512bf16")) return Loop{dot_products_bf16, kChains * 64.0};
  if (__builtin_cpu_supports("avx512f")) return Loop{multiply_add_512, kChains * 32.0};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return Loop{multiply_add_256, 12 * 16.0};
  return std::nullopt;
}

}  // namespace

double flops_per_second(DType kind, std::int64_t loops) {
  using Clock = std::chrono::steady_clock;
  const std::optional<Loop> loop = widest(kind);
  if (!loop) return 0;
  loop->run(loops / 10);  // the clock rises, wide vectors wake up
  const Clock::time_point before = Clock::now();
  loop->run(loops);
  return loop->flops * static_cast<double>(loops) / std::chrono::duration<double>(Clock::now() - before).count();
}

}  // namespace sherd::train
