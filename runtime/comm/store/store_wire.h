#pragma once
// What the store's two ends say to each other; integers are little-endian.
//
//   client                                server
//     <---- hello: magic 8, status 1, nonce 32          status `full`, here or below: no free connection, then closed
//     ----> proof: nonce 32, hmac 32                    hmac(secret, "client" + server nonce + client nonce)
//     <---- proof: status 1, hmac 32                    hmac(secret, "server" + server nonce + client nonce)
//     ----> request: op 1, key size 2, value size 4, argument 8, key, value
//     <---- reply: status 1, value size 4, value        strictly one reply per request
//
// Both ends prove that they know the secret; nothing is encrypted afterwards, so the store is for networks whose
// traffic is not altered on the way (a host, a cluster), and holds nothing worth reading.
#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/comm/store/hmac.h"

namespace sherd::wire {

inline constexpr std::string_view kMagic = "sherd-s1";
inline constexpr std::size_t kMaxKey = 256;
inline constexpr std::size_t kMaxValue = std::size_t{1} << 20;
/// Longer waits are cut to this, so that no sum of times overflows.
inline constexpr std::chrono::milliseconds kLongestWait = std::chrono::hours(24 * 7);

enum class Op : std::uint8_t { set = 1, get = 2, add = 3, erase = 4, set_at_end = 5 };
inline constexpr std::string_view kOpNames[] = {"", "set", "get", "add", "erase", "set at the end"};
/// `no_number`: add() found a value that is no integer, or the sum would not fit.
enum class Status : std::uint8_t { ok = 1, refused = 2, full = 3, timeout = 4, no_number = 5 };

using Nonce = std::array<char, 32>;
struct Hello {
  std::array<char, 8> magic;
  Status status;
  Nonce nonce;
};
struct ClientProof {
  Nonce nonce;
  Digest digest;
};
struct ServerProof {
  Status status;
  Digest digest;
};
// Bytes and byte arrays only: no padding, so these three are sent as they lie in memory.
static_assert(sizeof(Hello) == 41 && sizeof(ClientProof) == 64 && sizeof(ServerProof) == 33);

/// `argument`: add: the amount; get: milliseconds to wait.
struct RequestHeader {
  static constexpr std::size_t kSize = 15;
  Op op;
  std::uint16_t key_size;
  std::uint32_t value_size;
  std::int64_t argument;
};
struct ReplyHeader {
  static constexpr std::size_t kSize = 5;
  Status status;
  std::uint32_t value_size;
};

template <class Integer>
void put(char*& at, Integer value) {
  for (std::size_t i = 0; i < sizeof(Integer); ++i)
    *at++ = static_cast<char>(static_cast<std::uint64_t>(value) >> 8 * i);
}

template <class Integer>
Integer take(const char*& at) {
  std::uint64_t value = 0;
  for (std::size_t i = 0; i < sizeof(Integer); ++i) value |= std::uint64_t{static_cast<std::uint8_t>(*at++)} << 8 * i;
  return static_cast<Integer>(value);
}

inline std::array<char, RequestHeader::kSize> encode(const RequestHeader& header) {
  std::array<char, RequestHeader::kSize> bytes;
  char* at = bytes.data();
  put(at, static_cast<std::uint8_t>(header.op));
  put(at, header.key_size);
  put(at, header.value_size);
  put(at, header.argument);
  return bytes;
}

inline RequestHeader decode(const std::array<char, RequestHeader::kSize>& bytes) {
  const char* at = bytes.data();
  RequestHeader header;
  header.op = static_cast<Op>(take<std::uint8_t>(at));
  header.key_size = take<std::uint16_t>(at);
  header.value_size = take<std::uint32_t>(at);
  header.argument = take<std::int64_t>(at);
  return header;
}

inline std::array<char, ReplyHeader::kSize> encode(const ReplyHeader& header) {
  std::array<char, ReplyHeader::kSize> bytes;
  char* at = bytes.data();
  put(at, static_cast<std::uint8_t>(header.status));
  put(at, header.value_size);
  return bytes;
}

inline ReplyHeader decode(const std::array<char, ReplyHeader::kSize>& bytes) {
  const char* at = bytes.data();
  ReplyHeader header;
  header.status = static_cast<Status>(take<std::uint8_t>(at));
  header.value_size = take<std::uint32_t>(at);
  return header;
}

/// What `who` ("client" or "server") sends to prove that it knows the secret. The name keeps one end's proof from
/// being played back as the other's.
inline Digest proof(std::string_view secret, std::string_view who, const Nonce& server, const Nonce& client) {
  std::string message(who);
  message.append(server.data(), server.size()).append(client.data(), client.size());
  return hmac_sha256(secret, message);
}

}  // namespace sherd::wire
