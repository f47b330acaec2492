#pragma once
// Conversions between plain and distributed tensors.
#include <initializer_list>
#include <optional>
#include <span>
#include <vector>

#include "dtensor/spec.h"
#include "runtime/op/core/tensor.h"

namespace sherd {

/// A source of distribute(): every rank slices its own data, without communication.
inline constexpr int kOwnData = -1;

/// Distributes a plain tensor (equal shape and dtype on all ranks) over a mesh: the data of rank `source` of the mesh
/// (row-major), which broadcasts it. Each rank keeps a dense copy of its shard. Not recorded for backward. Error: a
/// Partial placement, a dim the tensor does not have.
Tensor distribute(const Tensor& tensor, const Spec* spec, int source = 0);
/// One placement per axis; axes on one dim split it in mesh order. Negative dims count from the end.
Tensor distribute(const Tensor& tensor, const DeviceMesh& mesh, std::span<const Placement> placements, int source = 0);
inline Tensor distribute(const Tensor& tensor, const DeviceMesh& mesh, std::initializer_list<Placement> placements,
                         int source = 0) {
  return distribute(tensor, mesh, std::span(placements.begin(), placements.size()), source);
}
/// Over a mesh of one axis.
inline Tensor distribute(const Tensor& tensor, const DeviceMesh& mesh, Placement placement, int source = 0) {
  return distribute(tensor, mesh, std::span(&placement, 1), source);
}

/// How a distributed tensor and the local tensors of its ranks become each other.
struct LocalOptions {
  /// Placements of the gradient of the distributed tensor, whose local tensor the other side has. Default: those of the
  /// tensor, Replicate where that is Partial, so that from_local(to_local(x)) is the identity in backward too.
  /// Partial() where it is Replicate or Partial: every rank has a partial gradient, and nothing is reduced. Set it in
  /// to_local() where x is replicated and each rank uses it differently.
  std::optional<std::vector<Placement>> grad_placements{};
  /// Collective and slow. from_local() compares shapes, dtypes and replicas over all ranks (check_parts.h); without it
  /// a wrong local tensor is an Error only on ranks that can see it. to_local() checks in backward that replicas of the
  /// gradient have the same bits.
  bool run_check = false;
  /// Global shape, for from_local(). Default: the local shape times the number of shards per dim, which is wrong for
  /// uneven shards.
  std::optional<Shape> shape{};
};

/// Wraps this rank's local tensor as a distributed one: no copy, no communication. Differentiable: the gradient is
/// redistributed to `grad_placements`, and `local` gets its local tensor (divided by the ranks of a Partial(avg));
/// Partial by max, min or product has no derivative. Error if `grad_placements` shards otherwise than `spec`.
Tensor from_local(Tensor local, const Spec* spec, const LocalOptions& options = {});
/// One placement per axis; axes on one dim split it in mesh order. Negative dims count from the end.
Tensor from_local(Tensor local, const DeviceMesh& mesh, std::span<const Placement> placements,
                  const LocalOptions& options = {});
inline Tensor from_local(Tensor local, const DeviceMesh& mesh, std::initializer_list<Placement> placements,
                         const LocalOptions& options = {}) {
  return from_local(std::move(local), mesh, std::span(placements.begin(), placements.size()), options);
}

/// This rank's local tensor: no copy, no communication. Differentiable: its gradient is wrapped as a distributed tensor
/// with `grad_placements`, without communication. Error if those shard otherwise than x, and for a shape.
Tensor to_local(Tensor x, const LocalOptions& options = {});

/// The mean over the ranks of `mesh` of what each has in x, a plain tensor or one that is distributed over other axes,
/// without history: mean_over(loss, dp) is the loss of the job. Collective over `mesh`, of one axis or several.
Tensor mean_over(const Tensor& x, const DeviceMesh& mesh);

/// The full tensor on every rank: redistribute to Replicate, then to_local. Differentiable.
Tensor full_tensor(Tensor x, const LocalOptions& options = {});

}  // namespace sherd
