#include "runtime/op/core/work.h"

#include <algorithm>

#include "runtime/exec/timeline_recording.h"
#include "runtime/op/core/dims.h"
#include "runtime/op/core/dispatch.h"
#include "runtime/op/core/trace_op.h"
#include "runtime/tensor/indices.h"

namespace sherd {

namespace {

// The type that a product computes in: the first floating input's.
DType product_type(MetaList in, std::span<const TensorMeta> out) {
  for (const TensorMeta& t : in)
    if (t.defined() && is_floating(t.dtype)) return t.dtype;
  return out.empty() ? DType::f32 : out[0].dtype;
}

}  // namespace

CallWork call_work(const Op& op, MetaList in, AttrsView attrs, std::span<const TensorMeta> out) {
  CallWork work{.dtype = product_type(in, out)};
  if (op.traits.issues) return work;
  std::int64_t read = 0, written = 0, largest = 0;
  for (const TensorMeta& t : out) {
    written += t.numel();
    largest = std::max(largest, t.numel());
  }
  for (const TensorMeta& t : in) {
    if (!t.defined()) continue;
    read = std::max(read, t.numel());
    largest = std::max(largest, t.numel());
  }
  const OpCost cost = op_cost(op, in, attrs, out);
  work.flops = cost.flops;
  work.bytes = static_cast<double>(cost.bytes);
  if (op.traits.linear && cost.flops > static_cast<double>(largest)) work.kind = WorkKind::contraction;
  else if (op.flops && cost.flops > 8 * work.bytes) work.kind = WorkKind::attention;
  else if (op.mutated) work.kind = WorkKind::optimizer;
  else if (op.traits.pointwise) work.kind = WorkKind::pointwise;
  else work.kind = op.traits.linear && written >= read ? WorkKind::copy : WorkKind::reduction;
  return work;
}

void note_call(const OpCall& call, std::span<const Tensor> out) {
  TimelineRecording* const timeline = RankContext::current().timeline;
  if (!timeline || call.op.traits.waits) return;
  Metas metas;
  for (const Tensor& t : out) metas.push_back(t.meta());
  timeline->called(call.op.name, shapes_key(call), call_work(call.op, call.in, call.attrs, metas),
                   [&] { return call_shapes(call); });
}

}  // namespace sherd
