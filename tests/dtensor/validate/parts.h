#pragma once
// What a rank holds of a full tensor, and which tensor the local ones of all ranks stand for under a placement: both
// on plain host values, using nothing of the library's own layouts, transitions or ops.
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "dtensor/placement.h"
#include "runtime/op/core/tensor.h"
#include "runtime/tensor/small_vec.h"

namespace sherd::testing {

/// One placement per mesh axis.
using Placements = SmallVec<Placement, 2>;

/// A tensor's elements as numbers, row-major.
struct Values {
  Shape shape;
  DType dtype = DType::f32;
  std::vector<double> at;
};
Values values_of(const Tensor& tensor);
Tensor tensor_of(const Values& values);

/// The local tensors of all ranks along one axis of `ranks`. Those of a Partial value are drawn from `seed` and reduce
/// to it exactly: of a sum no operand is zero, of a maximum one rank holds the element and the others less.
std::vector<Values> parts_along(const Values& whole, Placement placement, int ranks, std::uint64_t seed);

/// The local tensor at `coordinates` of a mesh of `sizes`; the first axis shards first.
Values part_at(Values whole, std::span<const Placement> placements, std::span<const int> sizes,
               std::span<const int> coordinates, std::uint64_t seed);

/// The tensor of shape `whole` that local tensors along one axis stand for if they have this placement; nothing if
/// they cannot.
std::optional<Values> read_as(std::span<const Values> parts, Placement placement, const Shape& whole);

/// Same shape and dtype, every element within limit x (1 + |expected|).
bool is_near(const Values& actual, const Values& expected, double limit);

}  // namespace sherd::testing
