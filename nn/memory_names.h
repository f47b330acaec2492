#pragma once
// Names for what a memory log has seen: parameters, gradients and states by their slots.
#include <functional>

#include "nn/module.h"
#include "runtime/exec/memory_log.h"

namespace sherd::nn {

/// For a MemoryLog: gives the blocks that have no name the name of the slot of this rank that lives and holds them:
/// "blocks.0.up.weight", "gradient of blocks.0.up.weight", "blocks.0.up.weight.m"; of bytes that several slots share
/// "tok.weight and 5 more". Of the parameters of the model their shards too, while they are gathered; it is
/// asked for each time, null while there is none. Local.
MemoryLog::Namer names_by_slots(std::function<const Module*()> model = {});

}  // namespace sherd::nn
