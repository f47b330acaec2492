#pragma once
// The checksum of tensor bytes in checkpoints.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace sherd {

/// XXH64 with seed 0. Own code: 40 lines, an order of magnitude faster than Boost.CRC's table, and 64 bits.
std::uint64_t checksum(std::span<const std::byte> bytes);
std::uint64_t checksum(std::string_view text);

/// 16 hexadecimal digits, as manifests spell it (JSON numbers do not hold 64 bits everywhere).
std::string checksum_text(std::uint64_t value);
/// Inverse of checksum_text(); throws Error on anything else.
std::uint64_t checksum_from_text(std::string_view text);

}  // namespace sherd
