#pragma once
// Reads any box of a tensor of a save from the pieces that hold it, and checks what it reads.
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "nn/checkpoint/format/block_reader.h"
#include "nn/checkpoint/format/manifest.h"
#include "nn/checkpoint/format/rank_file.h"

namespace sherd::ckpt {

/// Bytes of a save are not those that were written, or cannot be read: an older save may still be good.
class DamagedSave : public Error {
 public:
  using Error::Error;
};

/// A committed checkpoint, opened for reading. Any rank can read any box, so the number of ranks and the sharding may
/// differ from those that saved it; bitwise resume asks for the same number by require_world_size(). On one thread.
class CheckpointReader {
 public:
  /// `path` is one save, or a folder of saves, of which the newest is taken. Reads and checks the manifest, and that
  /// all files are there in full: else an Error, on every rank that opens the checkpoint. Of a version before 4 the
  /// headers of all files are read as well.
  explicit CheckpointReader(const std::string& path);
  CheckpointReader(CheckpointReader&&) = default;
  CheckpointReader(const CheckpointReader&) = delete;

  const Manifest& manifest() const { return manifest_; }
  /// The save's folder.
  const std::string& dir() const { return dir_; }

  /// Throws Error if the checkpoint was written by another number of ranks: a resume would not be bitwise.
  void require_world_size(int world_size) const;
  /// Throws Error listing the (kind, name) pairs that are missing from the checkpoint or in it but not in `wanted`.
  void require_exactly(const std::set<std::pair<std::string, std::string>>& wanted) const;

  /// A share of the work when several ranks check a save together: each byte is read by one of them.
  struct Share {
    int index = 0, of = 1;
  };
  /// Reads every byte and compares all checksums. One sentence for each block that differs, which names the file, the
  /// block and the tensors in it; or for each tensor of a version before 4.
  std::vector<std::string> find_damage(Share share) const;
  std::vector<std::string> find_damage() const { return find_damage(Share()); }
  /// Throws DamagedSave with the first of them.
  void verify(Share share) const;
  void verify() const { verify(Share()); }

  bool contains(const std::string& kind, const std::string& name) const;
  /// Any piece of the tensor: its dtype and global shape. Throws Error naming it if it is missing.
  const PieceEntry& describe(const std::string& kind, const std::string& name) const;
  /// All pieces of the tensor; none if it is missing. They live as long as the reader.
  std::vector<const PieceEntry*> pieces_of(const std::string& kind, const std::string& name) const;
  /// Throws Error if the tensor is missing, or is not of this dtype and shape, or the box does not lie in it. Reads no
  /// bytes, so it says nothing of damage.
  void check_box(const std::string& kind, const std::string& name, DType dtype, const Shape& shape,
                 const Box& box) const;
  /// Copies a box of the tensor to `out`, from as many pieces as hold it. Reads the blocks in which its bytes are and
  /// no others, and compares their checksums first: DamagedSave names the file, the block and the tensor. (Of a version
  /// before 4 it reads and compares whole pieces, once.) Throws Error as check_box(). Boxes that are read in the order
  /// of lies_before() share the blocks at their edges.
  void read_box(const std::string& kind, const std::string& name, DType dtype, const Shape& shape, const Box& box,
                std::span<std::byte> out) const;
  /// Bytes read from the rank files since it was opened.
  std::int64_t bytes_read() const { return blocks_.bytes_read(); }

 private:
  void open_earlier_version();
  std::string describe(const BlockFile& file, const std::string& name, const BadBlock& bad) const;
  void read(BlockFile& file, const PieceEntry& piece, std::int64_t begin, std::span<std::byte> out) const;
  /// Empty, or what is wrong with the piece.
  std::string compare_checksum(const PieceEntry& piece) const;
  void compare_once(const PieceEntry& piece) const;

  std::string dir_;
  Manifest manifest_;
  std::map<std::pair<std::string, std::string>, std::vector<const PieceEntry*>> tensors_;
  mutable std::map<std::string, BlockFile> files_;  // by name; opened when they are read
  mutable BlockReader blocks_;
  mutable std::set<const PieceEntry*> compared_;  // pieces with checksums of their own
};

}  // namespace sherd::ckpt
