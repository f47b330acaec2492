#pragma once
// Making distributed tensors and getting them back.
#include <initializer_list>
#include <optional>
#include <span>
#include <vector>

#include "dtensor/spec.h"
#include "runtime/op/tensor.h"

namespace sherd {

struct DistributeOptions {
  /// Rank of the mesh (row-major) whose data counts; kOwnData: every rank slices its own copy, no communication.
  int source = 0;
  static constexpr int kOwnData = -1;
};

/// Spreads a plain tensor (equal shape and dtype on all ranks) over a mesh. Broadcasts from the source rank unless told
/// otherwise; each rank keeps a dense copy of its part. No history. Error: a Partial placement, a dim it does not have.
Tensor distribute(const Tensor& tensor, const Spec* spec, const DistributeOptions& options = {});
/// Placements per axis, which cut in mesh order; negative dims count from the end.
Tensor distribute(const Tensor& tensor, const DeviceMesh& mesh, std::span<const Placement> placements,
                  const DistributeOptions& options = {});
inline Tensor distribute(const Tensor& tensor, const DeviceMesh& mesh, std::initializer_list<Placement> placements,
                         const DistributeOptions& options = {}) {
  return distribute(tensor, mesh, std::span(placements.begin(), placements.size()), options);
}
/// Over a mesh of one axis.
inline Tensor distribute(const Tensor& tensor, const DeviceMesh& mesh, Placement placement,
                         const DistributeOptions& options = {}) {
  return distribute(tensor, mesh, std::span(&placement, 1), options);
}

struct FromLocalOptions {
  /// Global shape. Without it every shard is taken for as large as this one, which uneven shards are not.
  std::optional<Shape> shape{};
  /// Compare shapes, dtypes and copies over all ranks (check_parts.h): collective and slow. Without it a wrong part is
  /// an Error on the ranks that can see it.
  bool run_check = false;
  /// How the gradients that the ranks get back make the whole gradient, per axis; unset: as the parts lie, Replicate
  /// where those are Partial. Partial() where the part is a copy: every rank gets a term, and nothing is reduced.
  std::optional<std::vector<Placement>> grad_placements{};
};

/// This rank's part, seen as a tensor over a mesh: no copy, no communication. Differentiable: the gradient is brought
/// to this layout, Replicate where it is Partial (divided by the ranks of a Partial(avg)), and its local part returned;
/// Partial by max, min or product have no derivative. Error if the gradient is said to be cut otherwise than the part.
Tensor from_local(Tensor local, const Spec* spec, const FromLocalOptions& options = {});
/// Placements per axis, which cut in mesh order; negative dims count from the end.
Tensor from_local(Tensor local, const DeviceMesh& mesh, std::span<const Placement> placements,
                  const FromLocalOptions& options = {});
inline Tensor from_local(Tensor local, const DeviceMesh& mesh, std::initializer_list<Placement> placements,
                         const FromLocalOptions& options = {}) {
  return from_local(std::move(local), mesh, std::span(placements.begin(), placements.size()), options);
}

struct ToLocalOptions {
  /// How the gradients of the ranks' parts make the whole gradient, per axis; unset: as x lies, Replicate where that is
  /// Partial, so that from_local(to_local(x)) is x in backward too. A replicated tensor that each rank uses in its own
  /// way has Partial gradients: say so.
  std::optional<std::vector<Placement>> grad_placements{};
  /// In backward, check that ranks whose gradients are copies of each other have the same bits: collective and slow.
  bool check_gradient = false;
};

/// This rank's part as a plain tensor: no copy, no communication. Differentiable: the gradient of the part is taken for
/// the part of a gradient, without communication. Error if the gradient is said to be cut otherwise than x.
Tensor to_local(Tensor x, const ToLocalOptions& options = {});

/// The whole tensor on every rank: redistribute to Replicate, then to_local. Differentiable.
Tensor full_tensor(Tensor x, const ToLocalOptions& options = {});

}  // namespace sherd
