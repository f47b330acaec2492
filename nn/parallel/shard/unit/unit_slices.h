#pragma once
// Resharding to k ranks after forward: each rank keeps 1/k of what it has gathered, so that backward gathers among k
// ranks, of one host for instance, for n/k times the memory of the shards. On 4 ranks with k = 2:
//
//   rank             0      1      2      3
//   shards         | 0    | 1    | 2    | 3    |     always, in the parameters' types
//   forward        | 0123 | 0123 | 0123 | 0123 |     gathered among all ranks
//   until backward | 01   | 23   | 01   | 23   |     slices: cut from what was gathered, in the types modules compute
//   in backward       | 0123 | 0123 | 0123 | 0123 |     gathered among 0 and 1, and among 2 and 3
//
// A cut is a gather of one shard, from the gathered buffer to the slices; so both are rows of unit.h.
#include <span>
#include <vector>

#include "nn/parallel/data_mesh.h"
#include "runtime/op/core/step_names.h"
#include "runtime/op/unit/unit_layout.h"
#include "runtime/tensor/no_copy.h"

namespace sherd::nn {

/// The mesh whose last axis, k consecutive ranks of the last one of `data`, is resharded to: mesh(dp=4) and k = 2 give
/// mesh(dp_outer=2,dp_inner=2). Collective over that axis at the first call with this k while a result lives. Error
/// unless k divides the axis, or if it is flattened from several.
DeviceMesh split_for_slices(const DeviceMesh& data, int k);

class UnitSlices : NoCopy {
 public:
  /// Slices of a unit of `data`, whose pieces are gathered to the layouts `gathered` (null: to plain tensors). `split`
  /// comes from split_for_slices(data, ...). Takes no memory yet.
  UnitSlices(const UnitLayout& unit, std::span<const Spec* const> gathered, DeviceMesh split);
  ~UnitSlices();

  /// Makes a place for them on `device`, without bytes. `owner` outlives this.
  void materialize(StorageOwner& owner, Device device);
  /// u8 [bytes]; undefined before materialize().
  const Tensor& bytes() const { return bytes_; }
  const DeviceMesh& split() const { return split_; }
  /// Over how many ranks a parameter is sharded after forward.
  int ranks() const { return gather_->shards; }
  /// Whether the tape keeps some for a backward pass.
  bool has_readers() const { return bytes_.defined() && bytes_.storage()->num_saved > 0; }
  /// From the gathered buffer, which is there, of the same unit. Local; waits for its gather.
  void cut(const Tensor& gathered) const;
  /// Starts to gather them into the gathered buffer, among ranks() ranks; as start_gather() (op/unit.h).
  void gather(const Tensor& gathered) const;
  /// Frees the bytes, if there are any; waits for a gather that reads them.
  void release() const;
  /// What is registered of a piece, as a distributed tensor of `shape`, without the slot's leaf.
  Tensor slice(std::size_t piece, const Shape& shape) const;

 private:
  DeviceMesh split_;  // keeps the groups
  UnitLayoutPtr cut_, gather_;
  std::vector<SpecRef> specs_;
  Tensor bytes_;
  std::shared_ptr<const NamedStorage> name_;
};

}  // namespace sherd::nn
