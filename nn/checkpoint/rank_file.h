#pragma once
// Writes one rank's pieces of a checkpoint, and reads any box of a tensor back from the pieces that hold it.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "nn/checkpoint/manifest.h"
#include "nn/checkpoint/safetensors.h"

namespace sherd {

/// The bytes of a tensor: at hand, or fetched from a device when their turn comes, so that only one tensor's are on the
/// host at a time.
class PieceBytes {
 public:
  using Fetch = std::function<std::span<const std::byte>()>;
  PieceBytes() = default;
  PieceBytes(std::span<const std::byte> bytes) : bytes_(bytes) {}  // NOLINT: borrows them
  PieceBytes(Fetch fetch) : fetch_(std::move(fetch)) {}            // NOLINT: of what it returns
  /// Valid until the next piece's bytes are asked for.
  std::span<const std::byte> get() const { return fetch_ ? fetch_() : bytes_; }

 private:
  std::span<const std::byte> bytes_;
  Fetch fetch_;
};

/// The box of one tensor that this rank saves.
struct Piece {
  std::string name;
  std::string kind = "param";
  DType dtype = DType::f32;
  Shape shape;  ///< global
  Box box;
  PieceBytes bytes;
  int part = 0;  ///< among the boxes that this rank saves of the tensor
};

/// A tensor's name in its rank file: a parameter's own, else "optim.m/NAME"; of a second box of it "NAME#1", and so on.
/// Parameter names use dots, so slash and # keep kinds and parts apart.
std::string stored_name(const std::string& kind, const std::string& name, int part = 0);

/// Writes DIR/SAVE/rank-NNNNN.safetensors and returns its entries for the manifest. Makes the folders. Blocks on the
/// disk; throws Error naming the file (disk full, bytes that do not fit the box) and leaves no partial file.
std::vector<PieceEntry> write_rank_file(const std::string& dir, const std::string& save, int rank,
                                        std::span<const Piece> pieces);

/// A committed checkpoint, opened for reading. Any rank can read any box, so the number of ranks and the sharding may
/// differ from those that saved it; bitwise resume asks for the same number by require_world_size().
class CheckpointReader {
 public:
  /// `path` is one save, or a folder of saves, of which the newest is taken. Reads and checks the manifest and the
  /// headers of all files: a missing or truncated file is an Error here, on every rank that opens the checkpoint.
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
  /// Reads every byte and compares all checksums; throws Error naming the first file and tensor that differ. Called
  /// before a resume by every rank, so that a flipped bit stops all of them with the same message.
  void verify() const;

  bool contains(const std::string& kind, const std::string& name) const;
  /// Any piece of the tensor: its dtype and global shape. Throws Error naming it if it is missing.
  const PieceEntry& describe(const std::string& kind, const std::string& name) const;
  /// Throws Error if the tensor is missing, or is not of this dtype and shape, or the box does not lie in it. Reads no
  /// bytes, so it says nothing of damage.
  void check_box(const std::string& kind, const std::string& name, DType dtype, const Shape& shape,
                 const Box& box) const;
  /// Copies a box of the tensor to `out`, from as many pieces as hold it; the checksum of each is compared first.
  /// Throws Error as check_box().
  void read_box(const std::string& kind, const std::string& name, DType dtype, const Shape& shape, const Box& box,
                std::span<std::byte> out) const;

 private:
  void compare_checksum(const PieceEntry& piece) const;

  std::string dir_;
  Manifest manifest_;
  std::map<std::pair<std::string, std::string>, std::vector<const PieceEntry*>> tensors_;
  std::map<std::string, SafetensorsFile> files_;
  mutable bool verified_ = false;
};

}  // namespace sherd
