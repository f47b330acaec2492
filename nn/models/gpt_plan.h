#pragma once
// Tensor parallelism of GPT, as data. Blocks are sharded like Llama's, see llama_plan.h; positions are replicated.
#include "nn/models/gpt.h"
#include "nn/models/plan_options.h"

namespace sherd::nn {

/// For a Gpt::Block by itself; a plain input counts as replicated.
Plan gpt_block_plan(const TensorParallelOptions& options = {});
/// For a Gpt. Heads must divide by the axis; other sizes need not.
Plan gpt_plan(const Gpt::Config& config, const TensorParallelOptions& options = {});

}  // namespace sherd::nn
