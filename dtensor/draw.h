#pragma once
// A layout as text: which ranks hold which elements.
//
//   draw(f32[4,6]{0: dp; 1: tp} on mesh(dp=2,tp=2)):
//
//     dim 0 \ 1   0:3      3:6
//               +--------+--------+
//           0:2 | rank 0 | rank 1 |
//               +--------+--------+
//           2:4 | rank 2 | rank 3 |
//               +--------+--------+
#include <string>

#include "dtensor/spec.h"
#include "runtime/op/core/tensor.h"

namespace sherd {

/// The title (describe_parts) and a drawing of a tensor of global `shape` in layout `spec`. A cell is a box of
/// elements, begin:end per dim, and names the ranks that hold it as the root mesh numbers them: "0 1" are replicas,
/// "0+1" Partial sums, "max(0,1)" Partial maxima. Many boxes or ranks are abbreviated; with three or more sharded dims
/// it lists ranks. Local.
std::string draw(const Spec& spec, const Shape& shape, DType dtype = DType::f32);
/// The same for a tensor in its own layout; a plain one is its describe().
std::string draw(const Tensor& tensor);

/// "f32[5,4]{0: dp} on mesh(dp=3), 16 B to 32 B per rank": the smallest and the largest local tensor. Of a plain
/// tensor: "f32[5,4], 80 B".
std::string describe_parts(const Tensor& tensor);

}  // namespace sherd
