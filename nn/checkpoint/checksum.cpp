#include "nn/checkpoint/checksum.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>

#include "runtime/tensor/error.h"

namespace sherd {

// XXH64 by its public specification (xxhash.com/doc, xxhash_spec.md): four lanes over 32-byte stripes, the lanes
// merged, then the tail in words of 8, 4 and 1 bytes, then an avalanche. Words are little-endian.
static_assert(std::endian::native == std::endian::little);

namespace {

constexpr std::uint64_t kPrime1 = 0x9E3779B185EBCA87, kPrime2 = 0xC2B2AE3D27D4EB4F, kPrime3 = 0x165667B19E3779F9,
                        kPrime4 = 0x85EBCA77C2B2AE63, kPrime5 = 0x27D4EB2F165667C5;

template <class Word>
std::uint64_t load(const std::byte* at) {
  Word word;
  std::memcpy(&word, at, sizeof word);
  return word;
}

std::uint64_t mix(std::uint64_t lane, std::uint64_t word) { return std::rotl(lane + word * kPrime2, 31) * kPrime1; }

std::uint64_t merge(std::uint64_t hash, std::uint64_t lane) { return (hash ^ mix(0, lane)) * kPrime1 + kPrime4; }

std::uint64_t avalanche(std::uint64_t hash) {
  hash = (hash ^ (hash >> 33)) * kPrime2;
  hash = (hash ^ (hash >> 29)) * kPrime3;
  return hash ^ (hash >> 32);
}

}  // namespace

const std::array<std::uint64_t, 4> Checksum::kStart = {kPrime1 + kPrime2, kPrime2, 0, 0 - kPrime1};

void Checksum::add(std::span<const std::byte> bytes) {
  check(tail_bytes_ == 0 || bytes.empty(), "a checksum goes on after a part of {} bytes, no multiple of {}", total_,
        tail_.size());
  const std::byte* at = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= tail_.size(); left -= tail_.size())
    for (auto& lane : lanes_) {
      lane = mix(lane, load<std::uint64_t>(at));
      at += 8;
    }
  std::copy_n(at, left, tail_.begin());
  tail_bytes_ = bytes.empty() ? tail_bytes_ : left;
  total_ += bytes.size();
}

std::uint64_t Checksum::value() const {
  std::uint64_t hash = kPrime5;
  if (total_ >= tail_.size()) {
    hash = std::rotl(lanes_[0], 1) + std::rotl(lanes_[1], 7) + std::rotl(lanes_[2], 12) + std::rotl(lanes_[3], 18);
    for (const auto lane : lanes_) hash = merge(hash, lane);
  }
  hash += total_;
  const std::byte* at = tail_.data();
  std::size_t left = tail_bytes_;
  for (; left >= 8; left -= 8, at += 8)
    hash = std::rotl(hash ^ mix(0, load<std::uint64_t>(at)), 27) * kPrime1 + kPrime4;
  if (left >= 4) {
    hash = std::rotl(hash ^ (load<std::uint32_t>(at) * kPrime1), 23) * kPrime2 + kPrime3;
    at += 4;
    left -= 4;
  }
  for (; left > 0; --left, ++at) hash = std::rotl(hash ^ (load<std::uint8_t>(at) * kPrime5), 11) * kPrime1;
  return avalanche(hash);
}

std::uint64_t checksum(std::span<const std::byte> bytes) {
  Checksum sum;
  sum.add(bytes);
  return sum.value();
}

std::uint64_t checksum(std::string_view text) { return checksum(std::as_bytes(std::span(text))); }

std::string checksum_text(std::uint64_t value) { return fmt::format("{:016x}", value); }

std::uint64_t checksum_from_text(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  check(text.size() == 16 && error == std::errc() && end == text.data() + text.size(),
        "\"{}\" is no checksum; a checksum is 16 hexadecimal digits", text.substr(0, 40));
  return value;
}

}  // namespace sherd
