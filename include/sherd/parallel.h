#pragma once
// Sharding a model over ranks, and what saves memory beside it.
#include <sherd/nn.h>

// How a training is spread over its ranks, as one value, a model that it is applied to, and the memory that it takes.
#include "nn/plan/apply.h"
#include "nn/plan/leaf_pass.h"
#include "nn/plan/predict.h"

// fully_shard, parallelize (tensor parallelism), and what saves memory beside them.
#include "nn/offload_activations.h"
#include "nn/parallel/extensions/int8_gather.h"
#include "nn/parallel/extensions/int8_reduce.h"
#include "nn/parallel/shard/wrap/fully_shard.h"
#include "nn/parallel/shard/wrap/no_sync.h"
#include "nn/parallel/shard/wrap/print_units.h"
#include "nn/parallel/shard/wrap/summon.h"
#include "nn/parallel/shard/wrap/unit_rules.h"
#include "nn/parallel/style.h"
#include "nn/parallel/tensor_parallel.h"
#include "nn/recompute.h"
