#include "nn/parallel/shard/unit_layout.h"

#include <algorithm>

#include "runtime/comm/group/group_names.h"
#include "runtime/op/buffer_views.h"

namespace sherd::nn {

namespace {

void set_types(UnitPiece& piece, DType dtype, const MixedPrecision& policy) {
  piece.dtype = piece.full_dtype = piece.wire = dtype;
  if (!is_floating(dtype)) return;
  piece.full_dtype = policy.param_dtype.value_or(dtype);
  piece.wire = policy.reduce_dtype.value_or(dtype);
}

// Behind the pieces that are there.
void append(UnitLayout& layout, UnitPiece piece) {
  piece.shard_offset = layout.shard_bytes;
  piece.full_offset = layout.full_bytes;
  layout.shard_bytes += align(layout.count_here(piece) * byte_size(piece.dtype));
  layout.full_bytes += align(sherd::numel(piece.shape) * byte_size(piece.full_dtype));
  layout.pieces.push_back(std::move(piece));
}

}  // namespace

PlacedUnit place_unit(const std::string& name, const DataMesh& data, const MixedPrecision& policy,
                      std::span<Parameter* const> parameters, const ShardPlanner& planner) {
  PlacedUnit unit;
  UnitLayout layout{.name = name, .shards = data.num_shards(), .shard = data.shard(), .replicas = data.num_replicas()};
  if (layout.shards > 1) layout.shard_axis = name_of_group(data.shard_group());
  if (layout.replicas > 1) layout.replica_axis = name_of_group(data.replica_group());
  const std::vector<ShardPlan> plans = plan_shards(name, parameters, planner, layout.shards);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const Parameter* const parameter = parameters[i];
    const ShardPlacement& at = unit.placements.emplace_back(data.place(*parameter, plans[i]));
    const std::string& path = parameter->name();
    UnitPiece piece{.shape = at.full_shape,
                    .dim = at.dim,
                    .rows = at.row_counts,
                    .name = path.starts_with(name + ".") ? path.substr(name.size() + 1) : path};
    set_types(piece, parameter->value().dtype(), policy);
    append(layout, std::move(piece));
  }
  unit.layout = UnitLayout::intern(std::move(layout));
  return unit;
}

const UnitLayout* with_dtype(const UnitLayout& unit, DType dtype, const MixedPrecision& policy) {
  UnitLayout layout = unit;
  layout.pieces.clear();
  layout.shard_bytes = layout.full_bytes = 0;
  for (UnitPiece piece : unit.pieces) {
    set_types(piece, is_floating(piece.dtype) ? dtype : piece.dtype, policy);
    append(layout, std::move(piece));
  }
  return UnitLayout::intern(std::move(layout));
}

bool casts(const UnitLayout& layout) {
  return std::ranges::any_of(layout.pieces, [](const UnitPiece& p) { return p.full_dtype != p.dtype; });
}

bool rounds(const UnitLayout& layout) {
  return std::ranges::any_of(layout.pieces, [](const UnitPiece& p) { return byte_size(p.wire) < byte_size(p.dtype); });
}

}  // namespace sherd::nn
