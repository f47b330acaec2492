#pragma once
// What the plans of all language models have in common: the layout of the residual stream, and the two ends of the
// model, which share the vocabulary.
//
//   tokens {} --tok {0: tp}--> terms --> stream --blocks--> stream --> norm --> head {0: tp} --> loss {}
#include "nn/parallel/tensor_parallel.h"

namespace sherd::nn {

struct TensorParallelOptions {
  /// The stream between blocks is cut along the sequence; norms and dropout work on parts. Where a block would sum
  /// over the ranks it gathers and scatters: as many bytes, less memory.
  bool sequence_parallel = false;
  /// Each rank holds a part of the vocabulary of the head and computes its part of the loss; logits are never whole.
  /// Off: every rank holds the whole head.
  bool loss_parallel = true;
};

/// How tensors [B, T, D] between blocks lie.
inline Placement stream_placement(const TensorParallelOptions& options) {
  return options.sequence_parallel ? Shard(1) : Replicate();
}
/// Of a layout that tensors have unless they are cut along the sequence `dim`: nothing to do then.
inline std::optional<Placement> if_sequence_parallel(const TensorParallelOptions& options, int dim) {
  return options.sequence_parallel ? std::optional(Shard(dim)) : std::nullopt;
}

/// The token embedding (tokens [B, T] are the same on all ranks): cut along the vocabulary, or whole where a tied head
/// is.
Style token_embedding_style(const TensorParallelOptions& options, bool tied_head);
/// LmHead: x [B, T, D] from the stream, targets [B, T] the same on all ranks.
Style head_style(const TensorParallelOptions& options);

}  // namespace sherd::nn
