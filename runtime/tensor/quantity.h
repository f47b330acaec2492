#pragma once
// Numbers as people type them: counts ("1000", "1e3") and bytes with a unit ("8GB", "512MiB").
#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>

namespace sherd {

/// The number that all of `text` is, of an integer digits in `base`, or 10. Nothing for other text, and for what T does
/// not hold.
template <class T, class... Base>
std::optional<T> number_of(std::string_view text, Base... base) {
  T value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base...);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

/// How an error message and --help say what parse_bytes() takes.
inline constexpr std::string_view kBytesForm = "a whole number of bytes, as 8000000000, 8e9, 8GB or 8GiB";
inline constexpr std::string_view kByteUnits =
    "BYTES take K, M, G, T (powers of 1000) or Ki, Mi, Gi, Ti (powers of 1024), with or without B: 8GB, 512MiB";

/// Reads a whole number from all of `text`: digits, a point and an exponent as far as the value is whole ("1e3",
/// "2.5e3"). Exact: no digit is rounded. Nothing for other text ("1e-3", "1.5", "10K") and beyond 64 bits.
std::optional<std::int64_t> parse_count(std::string_view text);

/// Reads a number from all of `text`: "0.5", "1e-3", "inf".
std::optional<double> parse_number(std::string_view text);

/// Reads a number of bytes: as parse_count(), and after the number K, M, G, T or Ki, Mi, Gi, Ti, with or without B.
/// "1.5G" is 1,500,000,000; "1.5B" is nothing.
std::optional<std::int64_t> parse_bytes(std::string_view text);

/// Reads bytes per second, which need not be whole, with the units of parse_bytes(): "2.5e9", "10GB".
std::optional<double> parse_byte_rate(std::string_view text);

}  // namespace sherd
