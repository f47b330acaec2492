#include "nn/parallel/shard/unit_layout.h"

#include <algorithm>

#include "runtime/comm/group/group_names.h"
#include "runtime/op/buffer_views.h"

namespace sherd::nn {

namespace {

UnitPiece piece_of(const ShardPlacement& at, DType dtype, const MixedPrecision& policy) {
  UnitPiece piece{.shape = at.full_shape, .dtype = dtype, .full_dtype = dtype, .wire = dtype, .rows = at.row_counts};
  if (!is_floating(dtype)) return piece;
  piece.full_dtype = policy.param_dtype.value_or(dtype);
  piece.wire = policy.reduce_dtype.value_or(dtype);
  return piece;
}

}  // namespace

PlacedUnit place_unit(const std::string& name, const DataMesh& data, const MixedPrecision& policy,
                      std::span<Parameter* const> parameters) {
  PlacedUnit unit;
  UnitLayout layout{.name = name, .shards = data.num_shards(), .shard = data.shard(), .replicas = data.num_replicas()};
  if (layout.shards > 1) layout.shard_axis = name_of_group(data.shard_group());
  if (layout.replicas > 1) layout.replica_axis = name_of_group(data.replica_group());
  for (const Parameter* parameter : parameters) {
    const ShardPlacement& at = unit.placements.emplace_back(data.place(*parameter));
    UnitPiece piece = piece_of(at, parameter->value().dtype(), policy);
    piece.name =
        parameter->name().starts_with(name + ".") ? parameter->name().substr(name.size() + 1) : parameter->name();
    piece.shard_offset = layout.shard_bytes;
    piece.full_offset = layout.full_bytes;
    layout.shard_bytes += align(sherd::numel(at.local_shape) * byte_size(piece.dtype));
    layout.full_bytes += align(sherd::numel(at.full_shape) * byte_size(piece.full_dtype));
    layout.pieces.push_back(std::move(piece));
  }
  unit.layout = UnitLayout::intern(std::move(layout));
  return unit;
}

bool casts(const UnitLayout& layout) {
  return std::ranges::any_of(layout.pieces, [](const UnitPiece& p) { return p.full_dtype != p.dtype; });
}

bool rounds(const UnitLayout& layout) {
  return std::ranges::any_of(layout.pieces, [](const UnitPiece& p) { return byte_size(p.wire) < byte_size(p.dtype); });
}

}  // namespace sherd::nn
