#include "dtensor/api.h"

#include "runtime/autograd/autograd.h"
#include "runtime/op/ops.h"

namespace sherd {

Tensor distribute(const Tensor& tensor, const DeviceMesh& mesh, Placement placement, const DistributeOptions& options) {
  check(!tensor.is_distributed(), "distribute: {} is distributed already", describe(tensor));
  check(!placement.is_partial(), "distribute: a tensor cannot be made Partial; ops produce partial values");
  if (placement.is_shard()) {
    check(tensor.ndim() > 0, "distribute: a 0-d tensor has no dim to shard");
    placement.dim = normalize_dim(placement.dim, tensor.ndim());
  }
  GradMode off(false);
  Tensor whole = tensor.detach();
  if (options.source != DistributeOptions::kOwnData && mesh.size() > 1)
    whole = broadcast_from(contiguous(whole), mesh.group(), options.source);
  const Spec* spec = Spec::of(mesh, placement);
  if (placement.is_shard()) {
    const Spec::Range range = spec->local_range(placement.dim, whole.size(placement.dim));
    whole = narrow(whole, placement.dim, range.begin, range.size());
  }
  Tensor local = Tensor::empty(whole.shape(), whole.dtype(), whole.device());
  if (!local.is_meta()) copy_into(local, whole);
  return Tensor::distributed(tensor.shape(), spec, local);
}

Tensor full_tensor(const Tensor& tensor) {
  const Spec& spec = Spec::from(tensor);
  const DeviceMesh mesh = spec.mesh();
  GradMode off(false);
  const Tensor local = tensor.local().detach();
  const Placement placement = spec.placements()[0];
  if (mesh.size() == 1 || placement.kind == Placement::Kind::replicate) return local;
  if (placement.is_partial()) return all_reduce(contiguous(local), mesh.group(), placement.reduce);
  // Gather along dim 0; other dims are moved to the front and back.
  if (placement.dim == 0) return all_gather(contiguous(local), mesh.group(), tensor.size(0));
  const Tensor front = contiguous(transpose(local, 0, placement.dim));
  return contiguous(transpose(all_gather(front, mesh.group(), tensor.size(placement.dim)), 0, placement.dim));
}

}  // namespace sherd
