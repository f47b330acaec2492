#pragma once
// Tensor parallelism from outside: a plan gives styles to modules by path, and the model file does not change. Tensors
// stay distributed between modules; each op's local computation follows from the sharding rules (dtensor/rule.h).
//
//   parallelize(model, mesh["tp"], {{"blocks.*.mlp.up", colwise()}, {"blocks.*.mlp.down", rowwise()}});
//   for (Module* block : model.blocks()) fully_shard(*block, mesh["dp"]);
//   model.materialize(Seed{42});
//
//   x {} --up--> {2: tp} --gelu--> {2: tp} --down--> {+tp} --> {}       one all-reduce forward, one backward
#include <string>
#include <utility>
#include <vector>

#include "dtensor/mesh.h"
#include "nn/module.h"
#include "nn/parallel/style.h"

namespace sherd::nn {

/// Module path patterns and their styles. A pattern matches a path component by component, with shell wildcards
/// ("blocks.*.attn.w[qkv]"); "" is the module itself. A module that several match gets all their styles, in order.
using Plan = std::vector<std::pair<std::string, Style>>;

/// Distributes `module` over a mesh of one axis. Every parameter below it becomes a distributed tensor there, sharded
/// by the plan or else replicated; buffers are replicated. Call it before fully_shard, which shards the local tensors
/// further. Parameters on meta stay there until materialize(), which draws each rank's own elements: the bits do not
/// depend on the number of ranks. Of existing values (equal on all ranks) each rank keeps its shard. Gradients end in
/// the parameter's layout; Partial ones of replicated parameters are reduced in one launch at the end of backward. A
/// forward or backward that is left by an exception aborts the mesh's group, so that peers do not wait;
/// group().reset(), on all ranks, clears it. No communication. Errors, the same on every rank: a mesh of several axes,
/// a pattern that matches nothing, a kind of module that its style does not cover, a second parallelize, a parameter
/// that fully_shard owns, tied parameters with two placements or used outside of `module`, a dim that a parameter does
/// not have, heads that the axis does not divide.
void parallelize(Module& module, const DeviceMesh& mesh, const Plan& plan);

/// Whether parallelize() was called on the module or one above it.
bool is_parallelized(const Module& module);

/// The same plan for modules below `prefix`: "attn.wq" becomes "blocks.*.attn.wq", "" the prefix.
Plan with_prefix(const std::string& prefix, const Plan& plan);

}  // namespace sherd::nn
