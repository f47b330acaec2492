#pragma once
// Activations outside of memory: what the tape keeps of a module's forward leaves for a file, or from a device for
// memory of the host, and is fetched ahead of its use in backward (runtime/autograd/offload_saved.h).
//
//   offload_activations(model, {.folder = "/scratch"});      // of the items of the model's lists, its blocks
//   recompute_blocks(model, {Recompute::full});              // then of a block its input alone is kept, and leaves
//
// Numbers have the bits of none, eager and captured. Before or after recompute(), parallelize() and fully_shard(),
// whose gathered parameters stay where they are.
#include <vector>

#include "nn/module.h"
#include "runtime/autograd/offload_saved.h"

namespace sherd::nn {

/// From now on what forward of these modules, and of what is below them, saves is offloaded. They share the bytes in
/// flight and the homes. What modules after them save, as the norm of the last block's result, stays in memory. Local.
/// Errors: a container, which has no forward; a module that is offloaded already; those of OffloadSaved, of which
/// pack()'s are the forward's.
void offload_activations(const std::vector<Module*>& modules, const OffloadSavedOptions& options);
/// The same for the items of the model's lists. Error if it has none.
void offload_activations(Module& model, const OffloadSavedOptions& options);

}  // namespace sherd::nn
