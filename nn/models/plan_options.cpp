#include "nn/models/plan_options.h"

namespace sherd::nn {

Plan block_plan(const TensorParallelOptions& options, const std::string& up, const std::string& down) {
  const Placement stream = stream_placement(options);
  Plan plan{
      {"", prepare_input({.from = Replicate(), .to = if_sequence_parallel(options, 1)})},
      // Several submodules read one input: prepare_input reduces its gradient once.
      {"attn", prepare_input({.from = Replicate(), .to = Replicate()})},
      {"attn.w[qkv]", colwise()},
      {"attn.wo", rowwise({.output = stream})},
      {up, colwise()},
      {down, rowwise({.output = stream})},
  };
  if (options.sequence_parallel) plan.emplace_back("*_norm", sequence_parallel());
  return plan;
}

void add_ends(Plan& plan, const TensorParallelOptions& options, bool tied_head) {
  plan.emplace_back("tok", token_embedding_style(options, tied_head));
  if (options.sequence_parallel) plan.emplace_back("norm", sequence_parallel());
  plan.emplace_back("head", head_style(options));
}

Style token_embedding_style(const TensorParallelOptions& options, bool tied_head) {
  if (options.loss_parallel || !tied_head) return rowwise({.output = stream_placement(options)});
  return prepare_input({.from = Replicate(), .to = if_sequence_parallel(options, 1)});
}

Style head_style(const TensorParallelOptions& options) {
  Style::Layout layout{.from = {Replicate(), Replicate()}, .inputs = {Replicate(), Replicate()}};
  if (options.loss_parallel) layout.parameters = {{"weight", Shard(0)}};
  return {.name = "head", .any = layout};
}

}  // namespace sherd::nn
