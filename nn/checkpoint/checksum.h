#pragma once
// The checksum of tensor bytes in checkpoints.
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace sherd {

/// XXH64 with seed 0, of bytes added in parts. Own code: 60 lines, an order of magnitude faster than Boost.CRC's
/// table, and 64 bits.
class Checksum {
 public:
  /// All parts but the last must have a multiple of 32 bytes; Error otherwise.
  void add(std::span<const std::byte> bytes);
  std::uint64_t value() const;

 private:
  std::array<std::uint64_t, 4> lanes_ = kStart;
  std::array<std::byte, 32> tail_{};  // what the last part has beyond whole stripes
  std::size_t tail_bytes_ = 0;
  std::uint64_t total_ = 0;
  static const std::array<std::uint64_t, 4> kStart;
};

/// The same in one call.
std::uint64_t checksum(std::span<const std::byte> bytes);
std::uint64_t checksum(std::string_view text);

/// 16 hexadecimal digits, as manifests spell it (JSON numbers do not hold 64 bits everywhere).
std::string checksum_text(std::uint64_t value);
/// Inverse of checksum_text(); throws Error on anything else.
std::uint64_t checksum_from_text(std::string_view text);

}  // namespace sherd
