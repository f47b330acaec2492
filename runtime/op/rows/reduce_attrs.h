#pragma once
// Attributes of reductions.
#include <cstdint>

#include "runtime/op/attrs/attr_kind.h"

namespace sherd {

struct ReduceAttrs {  ///< sum, mean, max, ...: bit d of `dims` set = reduce dim d
  std::uint64_t dims = 0;
  bool keep_dims = false;
  static constexpr AttrField fields[] = {attr<&ReduceAttrs::dims>("dims"), attr<&ReduceAttrs::keep_dims>("keep")};
};
/// var: divides by the number of elements minus `correction`.
struct VarAttrs {
  ReduceAttrs reduce{};  ///< first, because code for all reductions reads it as ReduceAttrs
  int correction = 1;
  static constexpr AttrField fields[] = {attr<&VarAttrs::reduce>(), attr<&VarAttrs::correction>("correction")};
};
struct SumToAttrs {
  Shape shape;
  static constexpr AttrField fields[] = {attr<&SumToAttrs::shape>("shape")};
};

}  // namespace sherd
