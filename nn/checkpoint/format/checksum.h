#pragma once
// The checksum of bytes in checkpoints: XXH64 with seed 0, by the xxHash library.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace sherd::ckpt {

/// Checksum of bytes that are added in parts of any size.
class Checksum {
 public:
  Checksum();
  Checksum(Checksum&&) noexcept;
  Checksum& operator=(Checksum&&) noexcept;
  ~Checksum();
  void add(std::span<const std::byte> bytes);
  /// Checksum of all bytes added so far.
  std::uint64_t value() const;

 private:
  struct State;  // the library's, whose header users need not have
  std::unique_ptr<State> state_;
};

/// The same in one call.
std::uint64_t checksum(std::span<const std::byte> bytes);
std::uint64_t checksum(std::string_view text);

/// 16 hexadecimal digits, as manifests spell it (JSON numbers do not hold 64 bits everywhere).
std::string checksum_text(std::uint64_t value);
/// Inverse of checksum_text(); throws Error on anything else.
std::uint64_t checksum_from_text(std::string_view text);

}  // namespace sherd::ckpt
