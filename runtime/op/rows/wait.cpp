// Waiting for queues as a row: the point of a program from which bytes can be touched, or given back. Eager programs
// need none, because the first touch waits.
#include "runtime/op/core/infer.h"
#include "runtime/op/rows/ops.h"
#include "runtime/op/rows/wait_attrs.h"

namespace sherd {

namespace {

// On the rank's thread. A storage whose data is released is in no queue's hands.
void run_wait(const KernelCall& call) {
  const bool to_write = call.attrs.as<WaitAttrs>().to_write;
  for (const Tensor& t : call.in) {
    if (!t.defined() || !t.storage() || !t.storage()->is_present()) continue;
    if (to_write) t.storage()->wait_to_write();
    else t.storage()->wait_to_read();
  }
}

}  // namespace

constinit const Op op::wait{
    .name = "wait",
    .doc = "Blocks until the queues that write the tensors' bytes, or with `to_write` use them at all, are done.",
    .attrs = &attr_kind<WaitAttrs>,
    .infer = [](const InferCall&) { return Metas{}; },
    .traits = {.issues = true, .effect = true, .waits = true, .local_extents = true},
    .no_gradient = "effect",
    .optional = kAnyInput,
};

void register_wait(OpTable& table) {
  table.add({&op::wait});
  table.kernel(op::wait, run_wait);
}

}  // namespace sherd
