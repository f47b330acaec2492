#pragma once
// What a call computes, for who prices it: FLOPs and bytes by op_cost(), and which rate counts them.
#include <span>

#include "runtime/exec/price.h"
#include "runtime/op/core/op.h"

namespace sherd {

struct OpCall;

/// Products of matrices are those linear in their inputs that take more FLOPs than they have elements, attention is
/// what counts FLOPs itself, and more than eight for each byte. Of the rest the bytes count: updates in place, rows on
/// each element, those that only move elements, and reductions. `issue` of rows that compute nothing.
CallWork call_work(const Op& op, MetaList in, AttrsView attrs, std::span<const TensorMeta> out);

/// Tells the timeline that the rank's thread writes, if it writes one, of a call with these outputs.
void note_call(const OpCall& call, std::span<const Tensor> out);

}  // namespace sherd
