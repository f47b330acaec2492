#include "nn/models/gpt_plan.h"

namespace sherd::nn {

Plan gpt_block_plan(const TensorParallelOptions& options) { return block_plan(options, "mlp.up", "mlp.down"); }

Plan gpt_plan(const Gpt::Config& config, const TensorParallelOptions& options) {
  Plan plan = with_prefix("blocks.*", gpt_block_plan(options));
  plan.emplace_back("pos", prepare_input({.from = Replicate(), .to = if_sequence_parallel(options, 0)}));
  add_ends(plan, options, config.tied_head);
  return plan;
}

}  // namespace sherd::nn
