#pragma once
// What a save is made of, whether training waits for it (save_checkpoint) or goes on (async_saver.h).
#include <span>
#include <string>
#include <vector>

#include "nn/checkpoint/training_state.h"

namespace sherd::ckpt {

/// A piece that this rank saves, still without bytes, and where they are.
struct OwnPiece {
  Piece piece;
  Tensor values;
};

/// Pieces of `state` that `rank` saves. One of the replicas saves a piece; a tensor without elements is saved as well.
/// Error naming an entry that is torn or Partial.
std::vector<OwnPiece> own_pieces(const std::vector<nn::StateEntry>& state, int rank);

/// A folder in `dir` that no committed save has, the same on all ranks. Collective.
std::string agreed_save_name(const std::string& dir, std::int64_t step, ProcessGroup& group);

/// On one rank: commits the save of which the ranks have written `files` (rank_file_to_json), and removes the older
/// ones that `retention` does not keep. Blocks on the disk. Throws Error, and then there is no such save.
void commit_files(const std::string& dir, const std::string& save, Manifest manifest,
                  std::span<const std::string> files, const Retention& retention);

/// Error on a ghost rank, which has no values.
void check_has_values(const std::string& dir);

}  // namespace sherd::ckpt
