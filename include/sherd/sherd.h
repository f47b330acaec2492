#pragma once
// What programs on Sherd are written with, in one include:
//
//   #include <sherd/sherd.h>
//   using namespace sherd;
//
// Each header below says what it holds. The library is sherd::sherd (find_package(sherd)). A whole training run as an
// object is "tools/train/trainer.h", of the library sherd::train. fmt::print comes along.
#include <fmt/format.h>

// Tensors, the functions on them, autograd.
#include "runtime/autograd/autograd.h"
#include "runtime/autograd/saved_policy.h"
#include "runtime/op/core/grad_mode.h"
#include "runtime/op/core/tensor.h"
#include "runtime/op/rows/einsum.h"
#include "runtime/op/rows/ops.h"

// Ranks, their groups and collectives. world_group() is the group of all ranks of the job.
#include "runtime/comm/board/thread_group.h"
#include "runtime/comm/group/comm_counter.h"
#include "runtime/comm/group/process_group.h"
#include "runtime/comm/job/rank.h"
#include "runtime/comm/job/world.h"

// Distributed tensors: meshes, placements, conversions.
#include "dtensor/api.h"
#include "dtensor/create.h"
#include "dtensor/draw.h"
#include "dtensor/mesh.h"
#include "dtensor/placement.h"
#include "dtensor/scopes.h"
#include "dtensor/transition/redistribute.h"

// compile(step): a captured step.
#include "compile/compile.h"

// Modules and layers. What is under nn/ is in namespace sherd::nn, but for saves and data; all else in sherd.
#include "nn/layers/attention.h"
#include "nn/layers/dropout.h"
#include "nn/layers/embedding.h"
#include "nn/layers/linear.h"
#include "nn/layers/mlp.h"
#include "nn/layers/norm.h"
#include "nn/module.h"
#include "nn/module_list.h"

// Models, with the plans that shard them.
#include "nn/models/gpt.h"
#include "nn/models/gpt_plan.h"
#include "nn/models/llama.h"
#include "nn/models/llama_plan.h"

// How a training is spread over its ranks, as one value, and a model that it is applied to.
#include "nn/plan/apply.h"

// Optimizers, learning rates, clipping, loss scaling.
#include "nn/optim/adamw.h"
#include "nn/optim/clip.h"
#include "nn/optim/loss_scaler.h"
#include "nn/optim/schedule.h"
#include "nn/optim/sgd.h"

// fully_shard, parallelize (tensor parallelism), and what saves memory beside them.
#include "nn/offload_activations.h"
#include "nn/parallel/extensions/int8_gather.h"
#include "nn/parallel/extensions/int8_reduce.h"
#include "nn/parallel/shard/wrap/fully_shard.h"
#include "nn/parallel/shard/wrap/pending_gradients.h"
#include "nn/parallel/shard/wrap/print_units.h"
#include "nn/parallel/shard/wrap/summon.h"
#include "nn/parallel/shard/wrap/unit_rules.h"
#include "nn/parallel/style.h"
#include "nn/parallel/tensor_parallel.h"
#include "nn/recompute.h"

// Checkpoints, full state dicts, Hugging Face directories.
#include "nn/checkpoint/format/saves.h"
#include "nn/checkpoint/full/full_state.h"
#include "nn/checkpoint/load/checkpoint_reader.h"
#include "nn/checkpoint/save/async_saver.h"
#include "nn/checkpoint/training_state.h"
#include "nn/interop/huggingface.h"

// What a step did and held: timelines, peaks of memory, the first value that is not finite.
#include "nn/memory_names.h"
#include "nn/non_finite.h"
#include "runtime/exec/memory_log.h"
#include "runtime/exec/trace.h"
#include "runtime/exec/trace_json.h"

// Text as tokens.
#include "nn/data/token_data.h"
#include "nn/data/vocabulary.h"
