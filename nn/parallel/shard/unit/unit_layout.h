#pragma once
// From the placements of parameters to the layout of their unit, which is data (runtime/op/unit/unit_layout.h).
#include <span>
#include <string>
#include <vector>

#include "nn/parallel/data_mesh.h"
#include "nn/parallel/mixed_precision.h"
#include "runtime/op/unit/unit_layout.h"

namespace sherd::nn {

struct PlacedUnit {
  UnitLayoutPtr layout{};
  std::vector<ShardPlacement> placements{};  ///< of its pieces: of the shards, or of what this rank owns of them
  /// Where replicas divide the shards (DataMesh::divides_shards): from what this rank owns to its shard, in place.
  UnitLayoutPtr owned{};
};

/// Lays out `parameters` one after the other, each as DataMesh::place says of its plan; gathered tensors and gradients
/// have its `types`. Equal arguments give the same layout. Errors: those of place().
PlacedUnit place_unit(const std::string& name, const DataMesh& data, std::span<const ParameterTypes> types,
                      std::span<Parameter* const> parameters, const ShardPlanner& planner = {});

/// The same unit with parameters of `dtype`, where they are floating-point; the other types follow from `types`.
UnitLayoutPtr with_dtype(const UnitLayout& unit, DType dtype, std::span<const ParameterTypes> types);
/// Returns `owned` with the dtypes and offsets of `unit`.
UnitLayoutPtr owned_parts(UnitLayout owned, const UnitLayout& unit);
/// The layout by which gradients of this rank's shard are reduced to what it owns of it: its full tensors are those, in
/// the type that they travel in, or that of grad(), in which sums of earlier passes wait, if that is wider.
UnitLayoutPtr layout_of_owned_gradients(const UnitLayout& owned);

/// Bytes of one row of dim 0.
std::int64_t row_bytes(const Shape& shape, DType dtype);

/// Whether full tensors have other types than their shards.
bool casts(const UnitLayout& layout);
/// Whether gradients are made in another type than that of grad(), or travel in less.
bool casts_gradients(const UnitLayout& layout);

}  // namespace sherd::nn
