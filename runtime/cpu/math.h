#pragma once
// exp, log, tanh, erf and friends as straight-line code: no tables, no branches, no library calls, so that a loop
// over any of them becomes vector code, and whole vectors and tails give the same bits. Errors are against the exact
// value, over all of the function's domain, measured by tests. Double goes to the C library.
//
// exp and log follow Cephes (Moshier): Cody-Waite reduction and a short polynomial. erf is two polynomials (N. Juffa).
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace sherd::cpu {

struct Math {
  // 2 ulp; 0 and infinity beyond the range, denormal results rounded once.
  static float exp(float x) {
    const float clamped = x < -104.0f ? -104.0f : x > 89.0f ? 89.0f : x;
    // Adding 1.5 * 2^23 rounds to the nearest integer and leaves it in the low bits.
    constexpr float kShift = 12582912.0f;
    const float shifted = std::fma(clamped, 1.44269504088896341f, kShift);
    const float n = shifted - kShift;
    float r = std::fma(n, -0.693145751953125f, clamped);
    r = std::fma(n, -1.42860682030941723212e-6f, r);
    float p = 1.9875691500e-4f;
    p = std::fma(p, r, 1.3981999507e-3f);
    p = std::fma(p, r, 8.3334519073e-3f);
    p = std::fma(p, r, 4.1665795894e-2f);
    p = std::fma(p, r, 1.6666665459e-1f);
    p = std::fma(p, r, 5.0000001201e-1f);
    p = std::fma(p, r * r, r) + 1.0f;
    // 2^n in two factors, so that neither leaves the range before the product does.
    const std::int32_t exponent = std::bit_cast<std::int32_t>(shifted) - std::bit_cast<std::int32_t>(kShift);
    const std::int32_t half = exponent >> 1;
    return p * power_of_two(half) * power_of_two(exponent - half);
  }
  static double exp(double x) { return std::exp(x); }

  // 1 ulp; log(0) = -inf, log(x < 0) = NaN, denormals as well.
  static float log(float x) {
    const bool denormal = x < 0x1p-126f;
    const float scaled = denormal ? x * 0x1p23f : x;
    // x = m * 2^e with m in [sqrt(1/2), sqrt(2))
    const auto offset = static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(scaled) - 0x3f3504f3u);
    const auto e = static_cast<float>((offset >> 23) - (denormal ? 23 : 0));
    const float m = std::bit_cast<float>((offset & 0x007fffff) + 0x3f3504f3);
    const float f = m - 1.0f;
    const float z = f * f;
    float p = 7.0376836292e-2f;
    p = std::fma(p, f, -1.1514610310e-1f);
    p = std::fma(p, f, 1.1676998740e-1f);
    p = std::fma(p, f, -1.2420140846e-1f);
    p = std::fma(p, f, 1.4249322787e-1f);
    p = std::fma(p, f, -1.6668057665e-1f);
    p = std::fma(p, f, 2.0000714765e-1f);
    p = std::fma(p, f, -2.4999993993e-1f);
    p = std::fma(p, f, 3.3333331174e-1f);
    float tail = std::fma(p * f, z, e * -2.12194440e-4f);
    tail = std::fma(-0.5f, z, tail);
    const float result = std::fma(e, 0.693359375f, f + tail);
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    const float special = x == 0.0f ? -kInfinity : x == kInfinity ? x : std::numeric_limits<float>::quiet_NaN();
    return x > 0.0f && x < kInfinity ? result : special;
  }
  static double log(double x) { return std::log(x); }

  // 2 ulp.
  static float tanh(float x) {
    const float a = std::fabs(x);
    const float s = x * x;
    float p = -5.70498872745e-3f;
    p = std::fma(p, s, 2.06390887954e-2f);
    p = std::fma(p, s, -5.37397155531e-2f);
    p = std::fma(p, s, 1.33314422036e-1f);
    p = std::fma(p, s, -3.33332819422e-1f);
    const float small = std::fma(p * s, a, a);
    const float large = 1.0f - 2.0f / (exp(2.0f * a) + 1.0f);
    return std::copysign(a < 0.625f ? small : large, x);
  }
  static double tanh(double x) { return std::tanh(x); }

  // 2 ulp.
  static float erf(float x) {
    const float t = std::fabs(x);
    const float s = x * x;
    float r = std::fma(-1.72853470e-5f, t, 3.83197126e-4f);
    const float u = std::fma(-3.88396438e-3f, t, 2.42546219e-2f);
    r = std::fma(r, s, u);
    r = std::fma(r, t, -1.06777877e-1f);
    r = std::fma(r, t, -6.34846687e-1f);
    r = std::fma(r, t, -1.28717512e-1f);
    r = std::fma(r, t, -t);
    const float large = std::copysign(1.0f - exp(r), x);
    float q = -5.96761703e-4f;
    q = std::fma(q, s, 4.99119423e-3f);
    q = std::fma(q, s, -2.67681349e-2f);
    q = std::fma(q, s, 1.12819925e-1f);
    q = std::fma(q, s, -3.76125336e-1f);
    q = std::fma(q, s, 1.28379166e-1f);
    const float small = std::fma(q, x, x);
    return t > 0.927734375f ? large : small;
  }
  static double erf(double x) { return std::erf(x); }

  // Exact reduction of any argument needs more than straight-line code; these two are the library's.
  template <class T>
  static T sin(T x) {
    return std::sin(x);
  }
  template <class T>
  static T cos(T x) {
    return std::cos(x);
  }

  /// sin(2 pi u) and cos(2 pi u) for |u| <= 1, 2 ulp of 1: the angle of a Box-Muller pair.
  static float sin_turns(float u) { return sine_of_eighths(u, 0); }
  static float cos_turns(float u) { return sine_of_eighths(u, 1); }

 private:
  static float power_of_two(std::int32_t n) { return std::bit_cast<float>((n + 127) << 23); }

  // sin(2 pi u + quarter * pi / 2): the nearest quarter turn is taken off, which is exact, and two polynomials on
  // [-pi/4, pi/4] cover what is left.
  static float sine_of_eighths(float u, std::int32_t quarter) {
    constexpr float kShift = 12582912.0f;
    const float shifted = 4.0f * u + kShift;
    const float n = shifted - kShift;
    const float angle = (4.0f * u - n) * 1.57079632679489662f;
    const std::int32_t quadrant = std::bit_cast<std::int32_t>(shifted) - std::bit_cast<std::int32_t>(kShift) + quarter;
    const float s = angle * angle;
    float sine = -1.9515295891e-4f;
    sine = std::fma(sine, s, 8.3321608736e-3f);
    sine = std::fma(sine, s, -1.6666654611e-1f);
    sine = std::fma(sine * s, angle, angle);
    float cosine = 2.443315711809948e-5f;
    cosine = std::fma(cosine, s, -1.388731625493765e-3f);
    cosine = std::fma(cosine, s, 4.166664568298827e-2f);
    cosine = std::fma(cosine * s, s, std::fma(-0.5f, s, 1.0f));
    const float value = (quadrant & 1) ? cosine : sine;
    return (quadrant & 2) ? -value : value;
  }
};

}  // namespace sherd::cpu
