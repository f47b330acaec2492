#include "nn/parallel/shard/unit/unit_layout.h"

#include <algorithm>

#include "runtime/comm/group/group_names.h"
#include "runtime/op/unit/buffer_views.h"
#include "runtime/tensor/indices.h"

namespace sherd::nn {

namespace {

void set_types(UnitPiece& piece, DType dtype, const ParameterTypes& types) {
  piece.dtype = piece.full_dtype = piece.wire = dtype;
  piece.grad_dtype.reset();
  if (!is_floating(dtype)) return;
  if (types.grad_dtype && *types.grad_dtype != dtype) piece.grad_dtype = types.grad_dtype;
  piece.full_dtype = types.param_dtype.value_or(dtype);
  piece.wire = types.reduce_dtype.value_or(piece.gradient_dtype());
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

PlacedUnit place_unit(const std::string& name, const DataMesh& data, std::span<const ParameterTypes> types,
                      std::span<Parameter* const> parameters, const ShardPlanner& planner) {
  PlacedUnit unit;
  UnitLayout layout{.name = name, .shards = data.num_shards(), .shard = data.shard(), .replicas = data.num_replicas()};
  if (layout.shards > 1) layout.shard_axis = name_of_group(data.shard_group());
  if (layout.replicas > 1) layout.replica_axis = name_of_group(data.replica_group());
  UnitLayout owned{.name = name,
                   .shard_axis = layout.replica_axis,
                   .shards = layout.replicas,
                   .shard = data.replica(),
                   .in_place = true};
  const std::vector<ShardPlan> plans = plan_shards(name, parameters, planner, layout.shards);
  for (const std::size_t i : indices(parameters)) {
    const Parameter* const parameter = parameters[i];
    ShardPlacement& at = unit.placements.emplace_back(data.place(*parameter, plans[i]));
    const std::string& path = parameter->name();
    UnitPiece piece{.shape = at.full_shape,
                    .dim = at.dim,
                    .rows = at.row_counts,
                    .name = path.starts_with(name + ".") ? path.substr(name.size() + 1) : path};
    set_types(piece, parameter->value().dtype(), types[i]);
    append(layout, std::move(piece));
    if (!data.divides_shards()) continue;
    UnitPiece& shard = owned.pieces.emplace_back(UnitPiece{.shape = at.local_shape});
    shard.rows = data.divide(at, *parameter);
  }
  unit.layout = UnitLayout::intern(std::move(layout));
  if (data.divides_shards()) unit.owned = owned_parts(std::move(owned), *unit.layout);
  return unit;
}

UnitLayoutPtr owned_parts(UnitLayout owned, const UnitLayout& unit) {
  owned.shard_bytes = owned.full_bytes = unit.shard_bytes;
  for (const std::size_t i : indices(owned.pieces)) {
    UnitPiece& p = owned.pieces[i];
    const UnitPiece& shard = unit.pieces[i];
    p.dtype = p.full_dtype = shard.dtype;
    p.wire = shard.wire;
    p.grad_dtype = shard.grad_dtype;
    p.name = shard.name;
    p.shard_offset = p.full_offset = shard.shard_offset;
    for (const int r : up_to(owned.shard)) p.shard_offset += owned.count(p, r) * byte_size(p.dtype);
  }
  return UnitLayout::intern(std::move(owned));
}

UnitLayoutPtr with_dtype(const UnitLayout& unit, DType dtype, std::span<const ParameterTypes> types) {
  UnitLayout layout = unit;
  layout.pieces.clear();
  layout.shard_bytes = layout.full_bytes = 0;
  for (const std::size_t i : indices(unit.pieces)) {
    UnitPiece piece = unit.pieces[i];
    set_types(piece, is_floating(piece.dtype) ? dtype : piece.dtype, types[i]);
    append(layout, std::move(piece));
  }
  return UnitLayout::intern(std::move(layout));
}

// Reductions read gradients of a shard in its place of the full tensors.
UnitLayoutPtr layout_of_owned_gradients(const UnitLayout& owned) {
  UnitLayout layout = owned;
  layout.in_place = false;
  layout.full_bytes = 0;
  for (UnitPiece& p : layout.pieces) {
    const DType sums = p.gradient_dtype();
    p.full_dtype = byte_size(sums) > byte_size(p.wire) ? sums : p.wire;
    p.full_offset = layout.full_bytes;
    layout.full_bytes += align(numel(p.shape) * byte_size(p.full_dtype));
  }
  return UnitLayout::intern(std::move(layout));
}

std::int64_t row_bytes(const Shape& shape, DType dtype) {
  std::int64_t bytes = byte_size(dtype);
  for (const int d : Numbers<int>(1, shape.size())) bytes *= shape[d];
  return bytes;
}

bool casts(const UnitLayout& layout) {
  return std::ranges::any_of(layout.pieces, [](const UnitPiece& p) { return p.full_dtype != p.dtype; });
}

bool casts_gradients(const UnitLayout& layout) {
  return std::ranges::any_of(layout.pieces, [](const UnitPiece& p) {
    return p.full_dtype != p.gradient_dtype() || byte_size(p.wire) < byte_size(p.full_dtype);
  });
}

}  // namespace sherd::nn
