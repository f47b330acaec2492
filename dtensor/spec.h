#pragma once
// Spec: the layout of a distributed tensor. Per tensor dim it keeps the *ordered list of mesh axes that split it*, so
// two axes on one dim (FSDP over TP) need no placement of their own. Padding is never part of the meaning.
//
//   f32[8]{0: tp,dp} on mesh(dp=2,tp=2)      tp splits first     tp 0          tp 1
//                                            dp 0 holds      rows 0 1      rows 4 5
//                                            dp 1 holds      rows 2 3      rows 6 7
//
// Shards of a dim have the sizes of the chunk rule, or those of an explicit list, which makes a layout one of tensors
// of that many rows:
//
//   f32[8,4]{0: dp(1,7)} on mesh(dp=2)       dp 0 holds row 0, dp 1 rows 1 to 7
//   f32[8,4]{0: dp(0,8)}                     dp 1 owns the matrix
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dtensor/mesh.h"
#include "dtensor/placement.h"
#include "runtime/op/core/distributed.h"

namespace sherd {

/// Equal layouts on one mesh are one object while it lives, so comparing is comparing pointers. A Spec holds no shape,
/// unless sizes of shards are listed, so a mesh has few others: it keeps those while it lives. One that lists sizes,
/// and any one of a mesh that is gone, lives while it is held (SpecRef, tensors, the tape); a plain pointer is good for
/// the call that has asked for it, and until the mesh was asked for kYoung layouts since.
class Spec final : public Distributed {
 public:
  /// One placement per mesh axis. Shard dims must be >= 0 (normalised by the caller). Axes that shard the same dim
  /// split it in mesh order, or in `order`: a list of axes, outermost first; axes it does not name follow in mesh
  /// order.
  static const Spec* of(const DeviceMesh& mesh, std::span<const Placement> placements, std::span<const int> order = {});
  static const Spec* of(const DeviceMesh& mesh, std::initializer_list<Placement> placements,
                        std::initializer_list<int> order = {}) {
    return of(mesh, std::span(placements.begin(), placements.size()), std::span(order.begin(), order.size()));
  }
  static const Spec* of(const DeviceMesh& mesh, Placement placement) { return of(mesh, std::span(&placement, 1)); }
  static const Spec* replicate(const DeviceMesh& mesh);
  /// The Spec of a distributed tensor; throws Error on a plain one.
  static const Spec& from(const class Tensor& tensor);

  DeviceMesh mesh() const;
  std::uint64_t mesh_id() const { return mesh_id_; }
  int num_axes() const { return static_cast<int>(placements_.size()); }
  int axis_size(int axis) const { return axes_[static_cast<std::size_t>(axis)].size; }
  int coordinate(int axis) const { return coordinates_[static_cast<std::size_t>(axis)]; }
  std::span<const Placement> placements() const { return placements_; }
  const Placement& placement(int axis) const { return placements_[static_cast<std::size_t>(axis)]; }
  /// Mesh axes that split tensor dim `dim`, outermost first.
  std::span<const int> axes_of(int dim) const;
  /// Number of shards along dim `dim`.
  int num_shards(int dim) const;
  bool is_partial() const override { return is_partial_; }
  bool is_replicated() const override { return is_replicated_; }
  /// Error if the mesh is gone.
  const Distributed* replicated() const override;

  /// This layout with another placement along one axis. A new Shard is the innermost split of its dim. A dim that other
  /// axes split then has shards by the chunk rule.
  const Spec* with(int axis, Placement placement) const;
  /// This layout with shards of `dim` of these sizes, row-major over axes_of(dim). Equal sizes give the layout without a
  /// list. Error unless there is one per shard, none negative.
  const Spec* with_rows(int dim, std::span<const std::int64_t> rows) const;
  /// This layout without the lists that say what the chunk rule says: tensors of both have the same local tensors, and
  /// to redistribute one to the other moves nothing.
  const Spec* simplified() const;
  /// The sizes of a dim's shards; empty: the chunk rule holds.
  std::span<const std::int64_t> rows_of(int dim) const;
  /// Whether any dim has one.
  bool lists_rows() const { return !rows_of_dim_.empty(); }
  /// An `order` with which of() gives this layout again.
  std::vector<int> order() const;

  struct Range {
    std::int64_t begin = 0, end = 0;
    std::int64_t size() const { return end - begin; }
    friend bool operator==(const Range&, const Range&) = default;
  };
  /// The range of dim `dim` (of `size` elements) that this rank, or the rank at `coordinates`, holds. Error if the
  /// shards of the dim are listed and have another number of elements.
  Range local_range(int dim, std::int64_t size) const;
  Range range_at(int dim, std::int64_t size, std::span<const int> coordinates) const;
  /// Index of this rank's first element per dim.
  Dims local_offset(const Shape& shape) const;

  Shape local_shape(const Shape& shape) const override;
  std::string describe() const override;
  std::string name() const override;

  /// For so many layouts that its mesh is asked for, one that lists sizes is kept though nobody holds it.
  static constexpr std::uint64_t kYoung = 1000;

 private:
  using Rows = std::vector<std::vector<std::int64_t>>;  // per tensor dim, up to the last one that has a list
  friend class SpecTable;
  static const Spec* intern(const DeviceMesh& mesh, std::span<const Placement> placements,
                            std::vector<std::vector<int>> axes_of_dim, Rows rows_of_dim);
  Spec(const DeviceMesh& mesh, std::span<const Placement> placements, std::vector<std::vector<int>> axes_of_dim,
       Rows rows_of_dim);
  Range nested_chunk(int dim, std::int64_t size, std::span<const int> coordinates) const;
  const Spec* with_lists(Rows lists) const;
  bool lists_chunks(int dim) const;

  std::weak_ptr<const DeviceMesh::Impl> mesh_;  // a layout does not keep the group alive
  std::uint64_t mesh_id_;
  std::vector<DeviceMesh::Axis> axes_;
  std::vector<int> coordinates_;
  std::vector<Placement> placements_;          // per mesh axis
  std::vector<std::vector<int>> axes_of_dim_;  // per tensor dim, up to the last one that is split
  Rows rows_of_dim_;
  bool is_partial_ = false, is_replicated_ = true;
};

using SpecRef = LayoutHandle<Spec>;

/// Chunk rule: shard r of n elements over `parts` ranks is [min(r*c, n), min((r+1)*c, n)) with c = ceil(n/parts).
Spec::Range chunk_range(std::int64_t n, int parts, int r);

}  // namespace sherd
