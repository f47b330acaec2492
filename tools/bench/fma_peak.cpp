// Each loop keeps 16 chains of dependent multiply-adds going: more than latency x ports of today's x86 cores, and few
// enough to stay in registers. One function per instruction set, chosen by what the CPU says.
#include "tools/bench/fma_peak.h"

#include <immintrin.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "runtime/tensor/error.h"
#include "tools/bench/child.h"

namespace sherd::bench {

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

Loop widest(DType kind) {
  if (kind == DType::bf16 && __builtin_cpu_supports("avx512bf16")) return {dot_products_bf16, kChains * 64.0};
  if (__builtin_cpu_supports("avx512f")) return {multiply_add_512, kChains * 32.0};
  check(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"),
        "this CPU has neither AVX2 with FMA nor AVX-512");
  return {multiply_add_256, 12 * 16.0};
}

}  // namespace

double seconds_per_gigaflop(DType kind, int threads) {
  using Clock = std::chrono::steady_clock;
  constexpr std::int64_t kLoops = 2'000'000;
  const Loop loop = widest(kind);
  std::barrier start(threads);
  std::vector<double> seconds(static_cast<std::size_t>(threads));
  {
    std::vector<std::jthread> workers;
    for (int t = 0; t < threads; ++t)
      workers.emplace_back([&, t] {
        pin_to_cpu(t);  // or a scheduler that is slow to move them lets two share a core
        start.arrive_and_wait();
        loop.run(kLoops / 10);  // the clock rises, wide vectors wake up
        const Clock::time_point before = Clock::now();
        loop.run(kLoops);
        seconds[static_cast<std::size_t>(t)] = std::chrono::duration<double>(Clock::now() - before).count();
      });
  }
  return std::ranges::max(seconds) / (loop.flops * static_cast<double>(kLoops) * threads) * 1e9;
}

}  // namespace sherd::bench
