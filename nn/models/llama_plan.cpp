#include "nn/models/llama_plan.h"

namespace sherd::nn {

Plan llama_block_plan(const TensorParallelOptions& options) {
  Plan plan = block_plan(options, "mlp.w[13]", "mlp.w2");
  plan.emplace_back("mlp", prepare_input({.from = Replicate(), .to = Replicate()}));
  return plan;
}

Plan llama_plan(const Llama::Config& config, const TensorParallelOptions& options) {
  Plan plan = with_prefix("blocks.*", llama_block_plan(options));
  add_ends(plan, options, config.tied_head);
  return plan;
}

}  // namespace sherd::nn
