#include "runtime/tensor/dtype.h"

#include <array>

namespace sherd {

namespace {
constexpr std::array<std::string_view, kNumDTypes> kNames = {"f64", "f32", "bf16", "f16", "i64", "i32", "u8", "bool"};
}  // namespace

std::string_view name(DType t) { return kNames[static_cast<std::size_t>(t)]; }

DType dtype_from_name(std::string_view text) {
  for (std::size_t i = 0; i < kNames.size(); ++i)
    if (kNames[i] == text) return static_cast<DType>(i);
  fail("unknown dtype \"{}\"; the dtypes are f64 f32 bf16 f16 i64 i32 u8 bool", text);
}

DType promote(DType a, DType b) {
  if (a == b) return a;
  const bool fa = is_floating(a), fb = is_floating(b);
  if (fa != fb) return fa ? a : b;  // a float wins over any integer, whatever their sizes
  const bool halves = (a == DType::bf16 && b == DType::f16) || (a == DType::f16 && b == DType::bf16);
  if (halves) return DType::f32;
  return a < b ? a : b;  // within a kind the enum runs from wide to narrow
}

f16::f16(float x) {
  const auto u = std::bit_cast<std::uint32_t>(x);
  const auto sign = static_cast<std::uint16_t>((u >> 16) & 0x8000u);
  const std::uint32_t magnitude = u & 0x7fffffffu;
  std::uint32_t rounded = 0;
  if (magnitude > 0x7f800000u) rounded = 0x7e00u;
  else if (magnitude >= 0x477ff000u) rounded = 0x7c00u;  // to inf
  else if (magnitude < 0x38800000u)                      // denormal half: let the float adder round at 2^-24
    rounded = std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
  else rounded = (magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u) >> 13;
  bits = static_cast<std::uint16_t>(sign | rounded);
}

f16::operator float() const {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t exponent = (bits >> 10) & 0x1fu, mantissa = bits & 0x3ffu;
  if (exponent == 0) {
    const float value = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) | sign);
  }
  if (exponent == 31) {  // NaNs become quiet, as the hardware's conversion makes them
    const std::uint32_t quiet = mantissa == 0 ? 0 : 0x00400000u;
    return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13) | quiet);
  }
  return std::bit_cast<float>(sign | ((exponent + 112u) << 23) | (mantissa << 13));
}

}  // namespace sherd
