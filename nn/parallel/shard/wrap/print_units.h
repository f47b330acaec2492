#pragma once
// What the units of a model hold, as a table to read:
//
//   unit                 ran  gathered  on this rank  of          type         reduced in  after forward
//   blocks.0               1   2.05 KB       1.02 KB  2 shards    f32 as bf16  f32         reshard
//     blocks.0.attn.wq.weight  f32[16,16]{0: dp}
//   blocks.0/replicated    1         -         128 B  2 replicas  f32          f32         stays
#include <string>

#include "nn/parallel/shard/wrap/unit_handle.h"

namespace sherd::nn {

/// The units of `model` and of the modules below, in the order in which they first ran in the last forward, then those
/// that did not, in module order: their modules, when they ran (counted from 0; "-" if they did not), bytes gathered
/// and on this rank with padding, how many shards and replicas there are, in which types parameters lie, compute and
/// travel as gradients, and whether they reshard after forward, and to how many ranks where not to all ("keep": until
/// backward, or as long as their strategy does; "stays": the shards are the full tensors). Parameters that stay
/// replicated are units of their own; those that no unit has, as ignored ones, are listed below. Shapes are global.
/// Local; does not wait for work in flight.
std::string print_units(Module& model, const Units::Lines& lines = {});

}  // namespace sherd::nn
