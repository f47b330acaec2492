#pragma once
// What the cores could do at most: independent fused multiply-adds on registers, with the widest vectors the CPU has.

namespace sherd::bench {

enum class PeakKind { f32, bf16 };  ///< bf16: dot products of bf16 pairs into f32 where the CPU has them, else f32

/// Seconds for 1e9 floating-point operations (a multiply-add is two) on so many threads together. Runs about 20 ms.
double seconds_per_gigaflop(PeakKind kind, int threads);

}  // namespace sherd::bench
