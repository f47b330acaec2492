#pragma once
// Writes one rank's pieces of a checkpoint. checkpoint_reader.h reads any box of a tensor back from such files.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "nn/checkpoint/format/manifest.h"
#include "nn/checkpoint/format/safetensors.h"

namespace sherd::ckpt {

/// The bytes of a tensor: at hand, or given in parts when their turn comes, so that only one tensor's are brought to
/// the host at a time.
class PieceBytes {
 public:
  using Use = std::function<void(std::span<const std::byte> part)>;
  using Give = std::function<void(const Use& use)>;
  PieceBytes() = default;
  PieceBytes(std::span<const std::byte> bytes) : bytes_(bytes) {}  // NOLINT: borrows them
  PieceBytes(Give give) : give_(std::move(give)) {}                // NOLINT: calls `use` with all bytes, in order
  void give(const Use& use) const {
    if (give_) give_(use);
    else use(bytes_);
  }

 private:
  std::span<const std::byte> bytes_;
  Give give_;
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

/// Whether a tensor of this type lies before another one in every rank file: wide dtypes first, then by stored name.
bool lies_before(DType dtype, std::string_view stored, DType other_dtype, std::string_view other_stored);

/// "rank-00003.safetensors".
std::string rank_file_name(int rank);

/// Writes DIR/SAVE/rank-NNNNN.safetensors and returns what the manifest says of it. Makes the folders. Blocks on the
/// disk; throws Error naming the file (disk full, bytes that do not fit the box) and leaves no partial file.
RankFile write_rank_file(const std::string& dir, const std::string& save, int rank, std::span<const Piece> pieces);

}  // namespace sherd::ckpt
