#include "nn/models/plan_options.h"

namespace sherd::nn {

Style token_embedding_style(const TensorParallelOptions& options, bool tied_head) {
  if (options.loss_parallel || !tied_head) return rowwise({.output = stream_placement(options)});
  return prepare_input({.from = Replicate(), .to = if_sequence_parallel(options, 1)});
}

Style head_style(const TensorParallelOptions& options) {
  ModuleLayout layout{.from = {Replicate(), Replicate()}, .inputs = {Replicate(), Replicate()}};
  if (options.loss_parallel) layout.parameters = {{"weight", Shard(0)}};
  return {.name = "head", .any = layout};
}

}  // namespace sherd::nn
