#include "nn/models/gpt_plan.h"

namespace sherd::nn {

Plan gpt_block_plan(const TensorParallelOptions& options) {
  const Placement stream = stream_placement(options);
  Plan plan{
      {"", prepare_input({.from = Replicate(), .to = if_sequence_parallel(options, 1)})},
      {"attn", prepare_input({.from = Replicate(), .to = Replicate()})},
      {"attn.w[qkv]", colwise()},
      {"attn.wo", rowwise({.output = stream})},
      {"mlp.up", colwise()},
      {"mlp.down", rowwise({.output = stream})},
  };
  if (options.sequence_parallel) plan.emplace_back("*_norm", sequence_parallel());
  return plan;
}

Plan gpt_plan(const GptConfig& config, const TensorParallelOptions& options) {
  Plan plan = with_prefix("blocks.*", gpt_block_plan(options));
  plan.emplace_back("tok", token_embedding_style(options, config.tied_head));
  plan.emplace_back("pos", prepare_input({.from = Replicate(), .to = if_sequence_parallel(options, 0)}));
  if (options.sequence_parallel) plan.emplace_back("norm", sequence_parallel());
  plan.emplace_back("head", head_style(options));
  return plan;
}

}  // namespace sherd::nn
