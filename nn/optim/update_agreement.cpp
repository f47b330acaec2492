#include "nn/optim/update_agreement.h"

#include <vector>

#include "runtime/autograd/autograd.h"
#include "runtime/comm/group/host_group.h"
#include "runtime/exec/context.h"
#include "runtime/exec/purpose.h"
#include "runtime/op/core/dispatch.h"
#include "runtime/op/core/infer.h"
#include "runtime/op/rows/collective_attrs.h"

namespace sherd::nn {

namespace {

// State of the rank context.
struct LostRanks {
  WhenRanksAreLost handler;
};

Metas infer_agreement(const InferCall& call) {
  const TensorMeta& scale = required(call, 0);
  check(scale.numel() == 1, "the gradient scale is {}; it must have one element", scale);
  return {};
}

// On the rank's own lane: what queues communicate has been waited for, or is not of the step.
void run_agreement(const KernelCall& call) {
  for (const Tensor& t : call.in)
    if (t.defined() && t.storage()) t.storage()->wait_to_read();
  try {
    group_of(call.attrs.as<CollectiveAttrs>()).host().barrier();
  } catch (const CommError& error) {
    const WhenRanksAreLost& handler = when_ranks_are_lost();
    if (!handler) throw;
    handler(error);
  }
}

constinit const Op kAgreeToUpdate{
    .name = "agree_to_update",
    .doc = "Waits until all ranks of a group have their inputs: a 0-d scale (counts as written), then what is known.",
    .attrs = &attr_kind<CollectiveAttrs>,
    .infer = infer_agreement,
    .traits = {.effect = true},
    .no_gradient = "effect",
    .mutated = [](const InferCall&) { return 1; },
};

void register_agreement(OpTable& table) {
  table.add({&kAgreeToUpdate});
  table.kernel(kAgreeToUpdate, Device::Kind::cpu, run_agreement);
}

}  // namespace

WhenRanksAreLost& when_ranks_are_lost() { return RankContext::current().state<LostRanks>().handler; }

void agree_to_update(Optimizer& optimizer, std::span<const Tensor> known, ProcessGroup& group) {
  const PurposeScope purpose("agree_to_update");
  const GradMode off(false);
  const PhaseScope phase(StepPhase::optimizer);
  std::vector<Tensor> in{optimizer.gradient_scale()};
  for (const Tensor& t : known) in.push_back(t.local().detach());
  for (const Tensor& t : in)
    check(t.device() == Device::cpu(), "agree_to_update: {} is on {}; ranks agree on updates on the host only", t,
          to_string(t.device()));
  add_rows(register_agreement);
  call_op(kAgreeToUpdate, in, CollectiveAttrs{.group = name_group(group)});
}

}  // namespace sherd::nn
