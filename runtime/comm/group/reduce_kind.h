#pragma once
// How a reduction combines.
#include <cstdint>
#include <string_view>

namespace sherd {

enum class ReduceKind : std::uint8_t { sum, avg, max, min, product };
std::string_view name(ReduceKind kind);

/// `avg` divides by the group size, `scale` multiplies the result once, before the final rounding. bf16/f16 accumulate
/// in f32, f64 in f64, integers exactly.
struct ReduceOptions {
  ReduceKind kind = ReduceKind::sum;
  double scale = 1.0;
};

}  // namespace sherd
