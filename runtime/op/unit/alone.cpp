#include "runtime/op/unit/alone.h"

#include "runtime/comm/board/elements.h"
#include "runtime/op/core/dispatch.h"
#include "runtime/op/rows/pointwise_attrs.h"

namespace sherd {

namespace {

bool follows(const Tensor& next, const Tensor& t) {
  return next.storage().get() == t.storage().get() && next.dtype() == t.dtype() &&
         next.offset() == t.offset() + t.numel();
}

Tensor extended(const Tensor& t, std::int64_t elements) {
  return Tensor::make(t.storage(), {t.numel() + elements}, {1}, t.offset(), t.dtype(), t.device());
}

void run_row(const Op& op, AttrsView attrs, Tensor in, const Tensor& out, bool accumulate) {
  OpCall call{op, {&in, 1}, attrs, {&out, 1}, accumulate};
  device_layer(call);
}

// One row, into fresh memory.
Tensor run_row(const Op& op, AttrsView attrs, Tensor in) {
  OpCall call{op, {&in, 1}, attrs};
  return std::move(device_layer(call)[0]);
}

// Casts into `out`, or copies where the dtypes are equal.
void store(Tensor in, const Tensor& out, bool accumulate) {
  if (in.dtype() == out.dtype()) run_row(op::copy, {}, std::move(in), out, accumulate);
  else run_row(op::cast, CastAttrs{out.dtype()}, std::move(in), out, accumulate);
}

DType compute_dtype(DType t) { return t == DType::bf16 || t == DType::f16 ? DType::f32 : t; }

// The steps of comm::reduce, as rows.
void reduce_on_device(const AlonePart& part) {
  const DType compute = compute_dtype(part.in.dtype());
  const bool narrow = is_floating(compute) && byte_size(part.wire) < byte_size(compute);
  const auto to_dtype = [&](Tensor t, DType dtype) {
    return t.dtype() == dtype ? t : run_row(op::cast, CastAttrs{dtype}, std::move(t));
  };
  Tensor x = part.in;
  if (narrow) x = to_dtype(std::move(x), part.wire);
  if (part.scale != 1.0) {
    x = run_row(op::mul_scalar, ScalarAttrs{part.scale}, to_dtype(std::move(x), compute));
    if (narrow) x = to_dtype(std::move(x), part.wire);
  }
  store(std::move(x), part.out, part.accumulate);
}

// What the host is to run itself. A ghost waits for both buffers as others do, and has nothing to run on.
bool runs_on_host(const AlonePart& part) {
  part.in.storage()->wait_to_read();
  part.out.storage()->wait_to_write();
  return !part.out.is_ghost();
}

void gather_on_host(const AlonePart& part) {
  if (!runs_on_host(part)) return;
  comm::copy(part.out.raw_to_write(), part.out.dtype(), part.in.raw(), part.in.dtype(), part.in.numel(), false);
}

void reduce_here(const AlonePart& part) {
  if (!runs_on_host(part)) return;
  reduce_on_host({static_cast<const std::byte*>(part.in.raw()), static_cast<std::byte*>(part.out.raw_to_write()),
                  part.in.numel(), part.in.dtype(), part.wire, part.out.dtype(), part.accumulate, part.scale});
}

}  // namespace

std::vector<AlonePart> joined(std::vector<AlonePart> parts) {
  std::vector<AlonePart> result;
  for (AlonePart& part : parts) {
    if (part.in.numel() == 0) continue;
    AlonePart* last = result.empty() ? nullptr : &result.back();
    if (last && last->wire == part.wire && last->accumulate == part.accumulate && last->scale == part.scale &&
        follows(part.in, last->in) && follows(part.out, last->out)) {
      last->in = extended(last->in, part.in.numel());
      last->out = extended(last->out, part.out.numel());
    } else {
      result.push_back(std::move(part));
    }
  }
  return result;
}

void gather_alone(const std::vector<AlonePart>& parts) {
  for (const AlonePart& part : parts)
    if (part.in.device() == Device::cpu()) gather_on_host(part);
    else store(part.in, part.out, false);
}

void reduce_alone(const std::vector<AlonePart>& parts) {
  for (const AlonePart& part : parts)
    if (part.in.device() == Device::cpu()) reduce_here(part);
    else reduce_on_device(part);
}

void reduce_on_host(const HostPart& part) {
  comm::reduce({&part.in, 1}, part.out, part.count,
               {.kind = ReduceKind::sum,
                .factor = part.scale,
                .accumulate = part.accumulate,
                .in = part.in_dtype,
                .wire = part.wire,
                .out = part.out_dtype},
               false);
}

}  // namespace sherd
