#include "dtensor/below.h"

#include "dtensor/spec.h"

namespace sherd {

Tensors below(const Op& op, const Attrs& attrs, std::span<Tensor> in) {
  OpCall call{op, in, attrs};
  return call_below_dist(call);
}

Tensor take_local(Tensor& t) {
  if (!t.defined() || !t.is_distributed()) return t;
  if (t.impl()->use_count() == 1) return Tensor(std::move(t.impl()->local));
  return t.local();
}

Tensor dense_below(Tensor x) {
  static const Op& copy = find_op("copy");
  if (x.strides() == contiguous_strides(x.shape())) return x;
  return below(copy, {}, std::move(x));
}

void abort_peers(const Spec& layout) noexcept {
  const DeviceMesh mesh = layout.mesh();
  if (mesh.num_ranks() > 1) mesh.group(0).abort(current_exception_text());
}

}  // namespace sherd
