#pragma once
// Tensor parallelism of Llama, as data.
//
//   stream --attn_norm--> {} --wq wk wv {0: tp}--> heads {1: tp} --wo {1: tp}--> {+tp} --> stream
//   stream --mlp_norm --> {} --w1 w3    {0: tp}--> hidden {2: tp} --w2 {1: tp}--> {+tp} --> stream
//
// A block has two all-reduces in forward and two in backward; with sequence parallelism each is an all-gather and a
// reduce-scatter instead.
#include "nn/models/llama.h"
#include "nn/models/plan_options.h"

namespace sherd::nn {

/// For a Llama::Block by itself; a plain input counts as replicated.
Plan llama_block_plan(const TensorParallelOptions& options = {});
/// For a Llama. Heads and key-value heads must divide by the axis; other sizes need not.
Plan llama_plan(const Llama::Config& config, const TensorParallelOptions& options = {});

}  // namespace sherd::nn
