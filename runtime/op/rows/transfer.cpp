// Moving tensors between devices, as a row: recorded on the tape, seen by captures, one place for every pair of
// devices.
#include <cstring>

#include "runtime/exec/context.h"
#include "runtime/op/core/infer.h"
#include "runtime/op/rows/create_attrs.h"
#include "runtime/op/rows/ops.h"
#include "runtime/op/rows/vjp.h"

namespace sherd {

namespace {

// Both sides are dense. The copy is made by a device's context: the output's comes with the call, an input's is looked
// up.
void transfer(const KernelCall& call) {
  const Tensor &x = call.in[0], &out = call.out[0];
  const std::int64_t bytes = x.bytes();
  if (bytes == 0) return;
  if (x.device() == out.device() && x.device() == Device::cpu()) {
    std::memcpy(out.raw(), x.raw(), static_cast<std::size_t>(bytes));
  } else if (x.device() == out.device()) {
    call.exec.device->copy(out.raw(), x.raw(), bytes);
  } else if (x.device() == Device::cpu()) {
    call.exec.device->upload(out.raw(), x.raw(), bytes);
  } else {
    check(out.device() == Device::cpu(), "no way from {} to {} but over the host: to(to(x, Device::cpu()), ...)",
          to_string(x.device()), to_string(out.device()));
    RankContext::current().device(x.device()).download(out.raw(), x.raw(), bytes);
  }
}

void transfer_vjp(VjpCall& c) { c.give(0, to(c.grad(), c.in_device(0))); }

}  // namespace

constinit const Op op::to_device{
    .name = "to_device",
    .doc = "x -> the same values on another device.",
    .attrs = &attr_kind<TransferAttrs>,
    .infer = infer_like_first,
    .dims = "...->...",
    .traits = {.linear = true},
    .algebra = Algebra::moves,
    .vjp = transfer_vjp,
    .device = [](AttrsView attrs) { return attrs.as<TransferAttrs>().device; },
};

void register_transfer(OpTable& table) {
  table.add({&op::to_device});
  table.kernel(op::to_device, transfer);
}

Tensor to(Tensor x, Device device) {
  if (x.device() == device) return x;
  check(!x.is_meta(), "{} has no values to move to {}; materialize the model first", x, to_string(device));
  return call(op::to_device, TransferAttrs{device}, contiguous(std::move(x)));
}

}  // namespace sherd
