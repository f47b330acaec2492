#pragma once
// The parameters of a unit, as pieces of its layout: where each lies, and the shapes that it has on its levels. No bytes.
#include <cstddef>
#include <vector>

#include "nn/module.h"
#include "nn/parallel/data_mesh.h"
#include "nn/parallel/shard/unit/unit_layout.h"

namespace sherd::nn {

class UnitPieces {
 public:
  /// `parameters` are the pieces of `unit`, in this order.
  UnitPieces(PlacedUnit unit, const std::vector<Parameter*>& parameters);

  const UnitLayout& layout() const { return *layout_; }
  /// The layout from what this rank owns to its shards; null if both are the same.
  const UnitLayout* owned() const { return owned_.get(); }
  /// Takes another layout, which differs in types only.
  void set_layout(const UnitLayoutPtr& layout);
  /// Whether a gathered parameter is a copy of its shard.
  bool is_plain() const { return layout_->shards == 1 && !casts(*layout_) && !owned_; }
  /// Whether a gather communicates.
  bool gathers() const { return layout_->shards > 1 || owned_ != nullptr; }

  std::size_t size() const { return pieces_.size(); }
  /// The parameter of a piece; null once it was destroyed, with its module: those of one unit may go one by one.
  Parameter* parameter(std::size_t piece) const;
  std::vector<Parameter*> parameters() const;
  /// From now on the parameters are those of others.
  void forget_parameters();
  const ShardPlacement& placement(std::size_t piece) const { return pieces_[piece].at; }
  /// Shape of this rank's shard of a piece; it may own a part of the shard.
  const Shape& shard_shape(std::size_t piece) const {
    return owned_ ? owned_->pieces[piece].shape : pieces_[piece].at.local_shape;
  }
  /// The groups that a parameter's ranks meet in, those of more than one rank: who holds its shards, who holds this one
  /// too, and of each axis of tensor parallelism. From any rank one after the other they reach all. Local.
  std::vector<ProcessGroup*> groups_of(std::size_t piece) const;

  /// The local tensor of a gathered parameter as modules see it: plain, or wrapped as a distributed tensor.
  Tensor as_gathered(std::size_t piece, const Tensor& local) const;
  /// A full local tensor, or the shard of one rank, in the shape that modules see: itself, or a view where leading dims
  /// are merged (shard_merged).
  Tensor as_used(std::size_t piece, const Tensor& full) const;
  /// The reverse: what modules see, in the shape whose dims are sharded.
  Tensor as_sharded(std::size_t piece, const Tensor& used) const;

 private:
  struct Piece {
    NodeRef leaf;  // of the parameter: knows whether that still exists
    ShardPlacement at;
  };
  UnitLayoutPtr layout_, owned_;
  std::vector<Piece> pieces_;
};

}  // namespace sherd::nn
