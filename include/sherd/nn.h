#pragma once
// Models, what trains them, and text. All of it is in namespace sherd::nn, but for data, which is in sherd.
#include <sherd/tensor.h>

// Modules and layers.
#include "nn/layers/attention.h"
#include "nn/layers/dropout.h"
#include "nn/layers/embedding.h"
#include "nn/layers/linear.h"
#include "nn/layers/mlp.h"
#include "nn/layers/norm.h"
#include "nn/module.h"
#include "nn/module_list.h"

// What a model held, and the first value that is not finite.
#include "nn/memory_names.h"
#include "nn/non_finite.h"

// Models, with the plans that shard them.
#include "nn/models/gpt.h"
#include "nn/models/gpt_plan.h"
#include "nn/models/llama.h"
#include "nn/models/llama_plan.h"

// Optimizers, learning rates, clipping, loss scaling.
#include "nn/optim/adamw.h"
#include "nn/optim/clip.h"
#include "nn/optim/loss_scaler.h"
#include "nn/optim/schedule.h"
#include "nn/optim/sgd.h"

// Text as tokens.
#include "nn/data/token_data.h"
#include "nn/data/vocabulary.h"
