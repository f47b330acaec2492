#pragma once
// The part that plans of all language models share: the layout of the residual stream, and the two ends of the model,
// which shard the vocabulary.
//
//   tokens {} --tok {0: tp}--> {+tp} --> stream --blocks--> stream --> norm --> head {0: tp} --> loss {}
#include "nn/parallel/tensor_parallel.h"
#include "runtime/op/attrs/attr_kind.h"

namespace sherd::nn {

struct TensorParallelOptions {
  /// The residual stream is sharded along the sequence; norms and dropout work on shards. Each all-reduce of a block
  /// becomes an all-gather and a reduce-scatter: as many bytes, less memory.
  bool sequence_parallel = false;
  /// The head and the loss are sharded along the vocabulary; logits are never gathered. Off: the head is replicated.
  bool loss_parallel = true;

  static constexpr AttrField fields[] = {
      attr<&TensorParallelOptions::sequence_parallel>("sequence_parallel").optional(),
      attr<&TensorParallelOptions::loss_parallel>("loss_parallel").optional()};
};

/// Placement of the residual stream [B, T, D] between blocks.
inline Placement stream_placement(const TensorParallelOptions& options) {
  return options.sequence_parallel ? Shard(1) : Replicate();
}
/// Shard(dim), dim being the sequence, under sequence parallelism; else no placement: tensors pass unchanged.
inline std::optional<Placement> if_sequence_parallel(const TensorParallelOptions& options, int dim) {
  return options.sequence_parallel ? std::optional(Shard(dim)) : std::nullopt;
}

/// A block of attention and a feed-forward part, whose matrices `up` and `down` name; a plain input counts as
/// replicated.
Plan block_plan(const TensorParallelOptions& options, const std::string& up, const std::string& down);
/// Adds the two ends of a model to the plan of its blocks.
void add_ends(Plan& plan, const TensorParallelOptions& options, bool tied_head);

/// The token embedding (tokens [B, T] are replicated): sharded along the vocabulary, or replicated with a tied head
/// that is.
Style token_embedding_style(const TensorParallelOptions& options, bool tied_head);
/// LmHead: x [B, T, D] from the residual stream, targets [B, T] replicated.
Style head_style(const TensorParallelOptions& options);

}  // namespace sherd::nn
