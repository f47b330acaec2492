#include "nn/models/llama_plan.h"

namespace sherd::nn {

Plan llama_block_plan(const TensorParallelOptions& options) {
  const Placement stream = stream_placement(options);
  Plan plan{
      {"", prepare_input({.from = Replicate(), .to = if_sequence_parallel(options, 1)})},
      // Several submodules read one input: prepare_input reduces its gradient once.
      {"attn", prepare_input({.from = Replicate(), .to = Replicate()})},
      {"attn.w[qkv]", colwise()},
      {"attn.wo", rowwise({.output = stream})},
      {"mlp", prepare_input({.from = Replicate(), .to = Replicate()})},
      {"mlp.w[13]", colwise()},
      {"mlp.w2", rowwise({.output = stream})},
  };
  if (options.sequence_parallel) plan.emplace_back("*_norm", sequence_parallel());
  return plan;
}

Plan llama_plan(const LlamaConfig& config, const TensorParallelOptions& options) {
  Plan plan = with_prefix("blocks.*", llama_block_plan(options));
  plan.emplace_back("tok", token_embedding_style(options, config.tied_head));
  if (options.sequence_parallel) plan.emplace_back("norm", sequence_parallel());
  plan.emplace_back("head", head_style(options));
  return plan;
}

}  // namespace sherd::nn
