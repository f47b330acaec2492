#include "dtensor/below.h"

#include "dtensor/spec.h"
#include "runtime/op/rows/view_attrs.h"

namespace sherd {

Tensors below(const Op& op, AttrsView attrs, std::span<Tensor> in) {
  OpCall call{op, in, attrs};
  return call_below_dist(call);
}

Tensor take_local(Tensor& t) {
  if (!t.defined() || !t.is_distributed()) return t;
  if (t.impl()->use_count() == 1) return Tensor(std::move(t.impl()->local));
  return t.local();
}

Tensor dense_below(Tensor x) {
  if (x.strides() == contiguous_strides(x.shape())) return x;
  return below(op::copy, {}, std::move(x));
}

Tensor mine_or_zeros(Tensor x, bool is_mine) {
  const Shape shape = x.shape();
  if (shape.empty()) x = below(op::view, ShapeAttrs{{1}}, std::move(x));
  const std::int64_t size = x.size(0);
  x = below(op::narrow, NarrowAttrs{0, 0, is_mine ? size : 0}, std::move(x));
  x = below(op::pad_to, PadToAttrs{0, 0, size}, std::move(x));
  return shape.empty() ? below(op::view, ShapeAttrs{shape}, std::move(x)) : x;
}

void abort_peers(const Spec& layout) noexcept try {
  const DeviceMesh mesh = layout.mesh();
  if (mesh.num_ranks() > 1) mesh.group(0).abort(current_exception_text());
} catch (const Error&) {  // the mesh is gone, which is the error that is on its way: nobody is left in its groups
}

}  // namespace sherd
