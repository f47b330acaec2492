#pragma once
// Tensor parallelism of GPT, as data. The blocks are cut as Llama's, see llama_plan.h; positions are whole.
#include "nn/models/gpt.h"
#include "nn/models/plan_options.h"

namespace sherd::nn {

/// For a GptBlock by itself; a plain input is the same on all ranks.
Plan gpt_block_plan(const TensorParallelOptions& options = {});
/// For a Gpt. Heads must divide by the axis; other sizes need not.
Plan gpt_plan(const GptConfig& config, const TensorParallelOptions& options = {});

}  // namespace sherd::nn
