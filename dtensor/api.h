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

struct FromLocalOptions {
  /// Global shape. Default: the local shape times the number of shards per dim, which is wrong for uneven shards.
  std::optional<Shape> shape{};
  /// Compare shapes, dtypes and replicas over all ranks (check_parts.h): collective and slow. Without it a wrong local
  /// tensor is an Error only on ranks that can see it.
  bool run_check = false;
  /// Placements of the gradient whose local tensor `local` receives. Default: `spec`, Replicate where that is Partial.
  /// Partial() where `spec` is Replicate or Partial: every rank gets a partial gradient, and nothing is reduced.
  std::optional<std::vector<Placement>> grad_placements{};
};

/// Wraps this rank's local tensor as a distributed one: no copy, no communication. Differentiable: the gradient is
/// redistributed to `grad_placements`, and `local` gets its local tensor (divided by the ranks of a Partial(avg));
/// Partial by max, min or product has no derivative. Error if `grad_placements` shards otherwise than `spec`.
Tensor from_local(Tensor local, const Spec* spec, const FromLocalOptions& options = {});
/// One placement per axis; axes on one dim split it in mesh order. Negative dims count from the end.
Tensor from_local(Tensor local, const DeviceMesh& mesh, std::span<const Placement> placements,
                  const FromLocalOptions& options = {});
inline Tensor from_local(Tensor local, const DeviceMesh& mesh, std::initializer_list<Placement> placements,
                         const FromLocalOptions& options = {}) {
  return from_local(std::move(local), mesh, std::span(placements.begin(), placements.size()), options);
}

struct ToLocalOptions {
  /// Placements of x's gradient, of which each rank's backward computes the local tensor. Default: x's, Replicate where
  /// that is Partial, so that from_local(to_local(x)) is the identity in backward too. Set Partial() where x is
  /// replicated and each rank uses it differently.
  std::optional<std::vector<Placement>> grad_placements{};
  /// In backward, check that replicas of the gradient have the same bits: collective and slow.
  bool check_gradient = false;
};

/// This rank's local tensor: no copy, no communication. Differentiable: its gradient is wrapped as a distributed tensor
/// with `grad_placements`, without communication. Error if those shard otherwise than x.
Tensor to_local(Tensor x, const ToLocalOptions& options = {});

/// The mean over the ranks of `mesh` of what each has in x, a plain tensor or one that is distributed over other axes,
/// without history: mean_over(loss, dp) is the loss of the job. Collective over `mesh`, of one axis or several.
Tensor mean_over(const Tensor& x, const DeviceMesh& mesh);

/// The full tensor on every rank: redistribute to Replicate, then to_local. Differentiable.
Tensor full_tensor(Tensor x, const ToLocalOptions& options = {});

}  // namespace sherd
