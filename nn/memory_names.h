#pragma once
// Names for what a memory log has seen: parameters, gradients and states by their slots.
#include "nn/module.h"
#include "runtime/exec/memory_log.h"

namespace sherd::nn {

/// Gives the blocks that have no name the name of the slot of this rank that lives and holds them:
/// "blocks.0.up.weight", "gradient of blocks.0.up.weight", "blocks.0.up.weight.m"; of bytes that several slots share
/// "tok.weight and 5 more". Of the parameters of `model` their shards too, while they are gathered. A Namer of
/// MemoryLog. Local.
void name_by_slots(MemoryPicture& picture, const Module* model = nullptr);

}  // namespace sherd::nn
