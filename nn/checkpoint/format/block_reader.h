#pragma once
// Files whose blocks have checksums, read by position: whole blocks, each compared before any of its bytes is used.
#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "nn/checkpoint/format/block_sums.h"
#include "nn/checkpoint/format/input_file.h"

namespace sherd::ckpt {

/// A file of a save; opened at its first use.
struct BlockFile {
  std::string path;
  const BlockSums* sums = nullptr;  ///< null: of a version that had none, so that nothing is compared
  std::optional<InputFile> file = {};
  std::int64_t bytes = -1;  ///< when it was opened first
};

/// A block that is not what was written.
struct BadBlock {
  std::int64_t block = 0;
  std::uint64_t expected = 0, found = 0;
};

/// Reads any number of files, on one thread. Blocks that are used in part stay for the next who wants some of them,
/// kMostKept at most: tensors that follow each other share one.
class BlockReader {
 public:
  static constexpr std::size_t kMostKept = 16, kMostOpen = 256;

  /// Fills `out` from byte `at` on, from blocks read whole: straight into `out` where all of a block is wanted. The
  /// first block that differs from its sum, after which `out` holds nothing of use. Throws Error naming the file if it
  /// cannot be opened or read, or has another size than its sums.
  std::optional<BadBlock> read(BlockFile& file, std::int64_t at, std::span<std::byte> out);
  /// Bytes read from files so far.
  std::int64_t bytes_read() const { return bytes_read_; }

 private:
  struct Kept {
    const BlockFile* file;
    std::int64_t block;
    std::vector<std::byte> bytes;
  };
  void open(BlockFile& file);
  std::optional<BadBlock> read_block(BlockFile& file, std::int64_t block, std::span<std::byte> out);
  const Kept* find(const BlockFile& file, std::int64_t block);

  std::list<Kept> kept_;  // the last one used first
  std::vector<BlockFile*> open_;
  std::int64_t bytes_read_ = 0;
};

}  // namespace sherd::ckpt
