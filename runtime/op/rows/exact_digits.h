#pragma once
// A sum of doubles without rounding, as 64-bit words that hosts and devices add alike. A double is at most three digits
// of 32 bits of a number that begins at 2^-1074; each digit is added to a word, and carries wait until the sum is read.
// So words are sums of integers, which have no order.
#include <bit>
#include <cstddef>
#include <cstdint>

#include "runtime/op/rows/optimizer_attrs.h"

namespace sherd {

inline constexpr std::size_t kExactDigits = kExactWords - 2, kExactInfinities = kExactDigits,
                             kExactNaNs = kExactDigits + 1;

/// Calls add(word, number) for what a double that is not negative adds to words.
template <class Add>
constexpr void for_each_digit(double value, const Add& add) {
  const auto bits = std::bit_cast<std::uint64_t>(value);
  const std::uint64_t exponent = bits >> 52U & 0x7ffU, fraction = bits & ((std::uint64_t{1} << 52U) - 1);
  if (exponent == 0x7ffU) return add(fraction == 0 ? kExactInfinities : kExactNaNs, std::uint64_t{1});
  const std::uint64_t mantissa = exponent == 0 ? fraction : fraction | std::uint64_t{1} << 52U;
  const std::uint64_t shift = exponent == 0 ? 0 : exponent - 1, bit = shift % 32;
  const std::uint64_t low = mantissa << bit, high = bit == 0 ? 0 : mantissa >> (64 - bit);
  const auto digit = static_cast<std::size_t>(shift / 32);
  if (const std::uint64_t d = low & 0xffffffffU; d != 0) add(digit, d);
  if (const std::uint64_t d = low >> 32U; d != 0) add(digit + 1, d);
  if (high != 0) add(digit + 2, high);
}

/// A sum that is finite: the number times 2^exponent, in as many bits that rounding it to a double is rounding the sum.
struct ExactSum {
  std::uint64_t number = 0;
  int exponent = 0;
};
template <class Word>
constexpr ExactSum sum_of_digits(const Word* words) {
  constexpr int kMore = 2;  // digits that carries reach
  std::uint64_t carry = 0, below = 0, below_that = 0, number = 0, next = 0;
  bool has_lower = false, has_more = false;
  int top = 0;
  for (int i = 0; i < static_cast<int>(kExactDigits) + kMore; ++i) {
    const std::uint64_t sum = carry + (i < static_cast<int>(kExactDigits) ? static_cast<std::uint64_t>(words[i]) : 0);
    const std::uint64_t digit = sum & 0xffffffffU;
    if (digit != 0) {  // the highest so far, with those below it
      top = i;
      number = digit << 32U | below;
      next = below_that << 32U;
      has_more = has_lower;
    }
    has_lower = has_lower || below_that != 0;
    below_that = below;
    below = digit;
    carry = sum >> 32U;
  }
  int shift = 0;
  for (; number >> 63U == 0 && (number | next) != 0; ++shift) {
    number = number << 1U | next >> 63U;
    next <<= 1U;
  }
  has_more = has_more || next != 0;  // bits below decide a tie
  return {number | static_cast<std::uint64_t>(has_more), 32 * (top - 1) - 1074 - shift};
}

}  // namespace sherd
