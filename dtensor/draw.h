#pragma once
// What people see of a layout: who holds what, in text.
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
#include "runtime/op/tensor.h"

namespace sherd {

/// The title (describe_parts) and a drawing of a tensor of global `shape` that lies as `spec`. A cell is a box of
/// elements, begin:end per dim, and names the ranks that hold it as the root of the mesh numbers them: "0 1" each has
/// it, "0+1" have terms of a sum, "max(0,1)" of a maximum. Many boxes or ranks are abbreviated; of three or more cut
/// dims it lists ranks. Local.
std::string draw(const Spec& spec, const Shape& shape, DType dtype = DType::f32);
/// Of a plain tensor: describe().
std::string draw(const Tensor& tensor);

/// "f32[5,4]{0: dp} on mesh(dp=3), 16 B to 32 B per rank": the least and the most that a rank holds. Of a plain tensor:
/// "f32[5,4], 80 B".
std::string describe_parts(const Tensor& tensor);

}  // namespace sherd
