#pragma once
// HMAC-SHA-256 (FIPS 180-4, RFC 2104): how the store's two ends prove that they know the same secret without
// sending it. It is the only cryptographic function of Sherd: 80 own lines with published test vectors cost less
// than a dependency on a cryptographic library. Short secrets and messages only; nothing here is tuned.
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace sherd {

using Digest = std::array<std::uint8_t, 32>;

Digest sha256(std::string_view message);
Digest hmac_sha256(std::string_view key, std::string_view message);

/// Compares without an early exit, so that the time taken tells a guesser nothing.
bool equal_digests(const Digest& a, const Digest& b);

/// `count` bytes from the system's random source, as text of two hexadecimal digits each: a fresh secret.
std::string random_hex(int count);

}  // namespace sherd
