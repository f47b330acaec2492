#pragma once
// A checksum for each MiB of a file, so that who reads a part of it checks that part and reads no more.
//
//   rank-00001.safetensors   | header, a . . | a . . . b . . | . b . . |      3 blocks, the last one shorter
//                            |     sum 0     |     sum 1     |  sum 2  |
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "nn/checkpoint/format/checksum.h"

namespace sherd::ckpt {

inline constexpr std::int64_t kBlockBytes = std::int64_t{1} << 20;

/// Sums of one file's blocks.
struct BlockSums {
  std::int64_t bytes = 0;  ///< of the file
  std::vector<std::uint64_t> sums;
  friend bool operator==(const BlockSums&, const BlockSums&) = default;
};

/// Blocks of a file of that size; the last one may be short.
constexpr std::int64_t num_blocks_of(std::int64_t bytes) {
  return bytes / kBlockBytes + (bytes % kBlockBytes != 0 ? 1 : 0);
}

/// 16 hexadecimal digits per block, one after the other.
std::string block_sums_text(std::span<const std::uint64_t> sums);
/// Inverse of block_sums_text(). Throws Error unless the text is made of the sums of `bytes` bytes.
BlockSums block_sums_from_text(std::int64_t bytes, std::string_view text);

/// The sums of a file as it is written, from its first byte to its last.
class BlockHasher {
 public:
  void add(std::span<const std::byte> bytes);
  /// Sums of all bytes added.
  BlockSums sums() const;

 private:
  BlockSums done_;  // whole blocks
  Checksum block_;  // the one that has begun
};

}  // namespace sherd::ckpt
