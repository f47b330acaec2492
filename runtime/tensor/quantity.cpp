// Decimal text is scaled in integers: 1.1 x 1000 is 1100, where doubles would have to round to find out.
#include "runtime/tensor/quantity.h"

#include <algorithm>
#include <array>

namespace sherd {

namespace {

/// Digits without their point and the power of ten that they stand for: "2.50" is 250 and -2.
struct Decimal {
  bool is_negative = false;
  std::uint64_t digits = 0;
  int exponent = 0;
};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

std::optional<int> parse_exponent(std::string_view signed_text) {
  std::string_view text = signed_text;
  constexpr int kMost = 1000;  // far beyond what 64 bits hold
  if (text.starts_with('+')) text.remove_prefix(1);
  if (text.empty() || (text[0] == '-' && signed_text.starts_with('+'))) return std::nullopt;
  const std::optional<int> exponent = number_of<int>(text);
  return exponent && *exponent >= -kMost && *exponent <= kMost ? exponent : std::nullopt;
}

std::optional<Decimal> parse_decimal(std::string_view text) {
  Decimal decimal;
  if (text.starts_with('-')) {
    decimal.is_negative = true;
    text.remove_prefix(1);
  }
  const std::size_t mark = std::min(text.find_first_of("eE"), text.size());
  if (mark < text.size()) {
    const std::optional<int> exponent = parse_exponent(text.substr(mark + 1));
    if (!exponent) return std::nullopt;
    decimal.exponent = *exponent;
  }
  bool has_digit = false, has_point = false;
  for (const char c : text.substr(0, mark)) {
    if (c == '.' && !has_point) {
      has_point = true;
      continue;
    }
    if (!is_digit(c) || __builtin_mul_overflow(decimal.digits, 10U, &decimal.digits) ||
        __builtin_add_overflow(decimal.digits, static_cast<unsigned>(c - '0'), &decimal.digits))
      return std::nullopt;
    has_digit = true;
    decimal.exponent -= has_point ? 1 : 0;
  }
  return has_digit ? std::optional(decimal) : std::nullopt;
}

/// The number in `text` times `unit`, if that is whole.
std::optional<std::int64_t> whole_number(std::string_view text, std::uint64_t unit) {
  std::optional<Decimal> number = parse_decimal(text);
  if (!number) return std::nullopt;
  if (number->digits == 0) return 0;
  std::uint64_t factor = unit;
  for (; number->exponent < 0; ++number->exponent)
    for (const unsigned prime : {2U, 5U}) {
      if (number->digits % prime == 0) number->digits /= prime;
      else if (factor % prime == 0) factor /= prime;
      else return std::nullopt;
    }
  std::int64_t value = 0;
  if (__builtin_mul_overflow(number->digits, factor, &value)) return std::nullopt;
  for (; number->exponent > 0; --number->exponent)
    if (__builtin_mul_overflow(value, 10, &value)) return std::nullopt;
  return number->is_negative ? -value : value;
}

struct Measure {
  std::string_view number;
  std::uint64_t unit;
};

/// Takes the unit off the end of `text`.
Measure split_unit(std::string_view text) {
  constexpr std::string_view kPrefixes = "KMGT";
  const auto take_last = [&text](char c) {
    if (!text.ends_with(c)) return false;
    text.remove_suffix(1);
    return true;
  };
  take_last('B');
  const bool is_binary = take_last('i');
  std::uint64_t unit = 1;
  const std::size_t prefix = text.empty() ? kPrefixes.npos : kPrefixes.find(text.back());
  if (prefix == kPrefixes.npos) return {is_binary ? std::string_view() : text, unit};
  text.remove_suffix(1);
  for (std::size_t i = 0; i <= prefix; ++i) unit *= is_binary ? 1024 : 1000;
  return {text, unit};
}

}  // namespace

std::optional<std::int64_t> parse_count(std::string_view text) { return whole_number(text, 1); }

std::optional<double> parse_number(std::string_view text) { return number_of<double>(text); }

std::optional<std::int64_t> parse_bytes(std::string_view text) {
  const Measure measure = split_unit(text);
  return whole_number(measure.number, measure.unit);
}

std::optional<double> parse_byte_rate(std::string_view text) {
  const Measure measure = split_unit(text);
  const std::optional<double> number = parse_number(measure.number);
  return number ? std::optional(*number * static_cast<double>(measure.unit)) : std::nullopt;
}

}  // namespace sherd
