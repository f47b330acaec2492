#pragma once
// Tensors and the functions on them, ranks and their groups, distributed tensors, autograd; what a step did.
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
#include "runtime/comm/job/world.h"

// Distributed tensors: meshes, placements, conversions.
#include "dtensor/api.h"
#include "dtensor/create.h"
#include "dtensor/draw.h"
#include "dtensor/mesh.h"
#include "dtensor/placement.h"
#include "dtensor/scopes.h"
#include "dtensor/transition/redistribute.h"

// What a step did: timelines. What it held is in nn.h, by the names of a model.
#include "runtime/exec/trace_json.h"
