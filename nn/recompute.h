#pragma once
// Activation checkpointing: of a module's forward the tape keeps little, and backward computes the rest again.
//
//   recompute_blocks(model, {Recompute::full});                  // the items of the model's lists
//   recompute(model.head, {Recompute::selective, {&op::linear}}); // one module; the results of products are kept
//
// The recorded ops run again (runtime/autograd/segment.h), not the module: bits, random draws and hooks are as without.
// Before or after parallelize() and fully_shard(), whose gathers it does not repeat.
#include <cstdint>
#include <string_view>
#include <vector>

#include "dtensor/transition/placement_rows.h"
#include "nn/module.h"
#include "runtime/op/core/rows.h"

namespace sherd::nn {

/// What the tape keeps of a module's forward.
struct Recompute {
  enum Mode : std::uint8_t {
    none,       ///< what backward reads; of a part of a module that is recomputed: of this part
    selective,  ///< what comes from outside, and what calls of some rows read and give
    full,       ///< what comes from outside: inputs, parameters, random draws
  };
  Mode mode = full;
  /// Rows of selective, whose calls do not run again. Attention's q, k, v and result: then all before it is not needed
  /// again, and what follows it is cheap to compute for its bytes. A norm in between, of q and k, reads what the
  /// product before it gave when its own vjp runs: with &op::rms_norm that is kept, too. With &op::redistribute what is
  /// distributed does not communicate again in backward.
  std::vector<const Op*> keeps{&op::scaled_dot_product_attention};
};

/// By name: none, selective, full. Error naming the nearest for other names.
Recompute recompute_policy(std::string_view name);

/// Recomputes `module` in backward from now on. One inside of another is a part of it that keeps more or less. Local.
/// Errors: a container, which has no forward; a module that has a policy already. Errors of its forward, which end the
/// step as others do, so that all ranks of a sharded model get one: a hook of it, or below, that is not marked
/// ModuleHook::can_recompute(); a host read of a tensor; a collective of its own (all_reduce() and the like), where the
/// tape would record it. Gathers of fully_shard are not part of the forward and may do either. Collectives of
/// distributed tensors run again. What a module makes without a gradient and its rows read (a mask) stays on the tape.
void recompute(Module& module, Recompute policy = {});
/// recompute() of the items of the model's lists, its blocks. Error if it has none, and the model stays as it is if one
/// has a policy already.
void recompute_blocks(Module& model, const Recompute& policy = {});

}  // namespace sherd::nn
