#pragma once
// Spec: the layout of a distributed tensor. Per tensor dim it keeps the *ordered list of mesh axes that split it*, so
// two axes on one dim (FSDP over TP) need no placement of their own. Padding is never part of the meaning.
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "dtensor/mesh.h"
#include "dtensor/placement.h"
#include "runtime/tensor/distributed.h"

namespace sherd {

/// Interned and immortal: equal layouts on one mesh are one object, so comparing is comparing pointers.
class Spec final : public Distributed {
 public:
  /// One placement per mesh axis. Shard dims must be >= 0 (normalised by the caller).
  static const Spec* of(const DeviceMesh& mesh, std::span<const Placement> placements);
  static const Spec* of(const DeviceMesh& mesh, Placement placement) { return of(mesh, std::span(&placement, 1)); }
  /// The Spec of a distributed tensor; throws Error on a plain one.
  static const Spec& from(const class Tensor& tensor);

  DeviceMesh mesh() const;
  std::span<const Placement> placements() const { return placements_; }
  /// Mesh axes that split tensor dim `dim`, outermost cut first.
  std::span<const int> axes_of(int dim) const;

  struct Range {
    std::int64_t begin = 0, end = 0;
    std::int64_t size() const { return end - begin; }
  };
  /// The part of dim `dim` (of `size` elements) that the rank at `coordinates` (default: this one) holds.
  Range local_range(int dim, std::int64_t size) const;
  Range range_at(int dim, std::int64_t size, std::span<const int> coordinates) const;

  Shape local_shape(const Shape& shape) const override;
  std::string describe() const override;

 private:
  Spec(const DeviceMesh& mesh, std::span<const Placement> placements);

  std::weak_ptr<const DeviceMesh::Impl> mesh_;  // a layout does not keep the group alive
  std::vector<DeviceMesh::Axis> axes_;
  std::vector<int> coordinates_;
  std::vector<Placement> placements_;          // per mesh axis
  std::vector<std::vector<int>> axes_of_dim_;  // per tensor dim, as far as any is split
};

/// Chunk rule: part r of n elements cut for `parts` ranks is [min(r*c, n), min((r+1)*c, n)) with c = ceil(n/parts).
Spec::Range chunk_range(std::int64_t n, int parts, int r);

}  // namespace sherd
