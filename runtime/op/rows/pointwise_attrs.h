#pragma once
// Attributes of pointwise rows.
#include "runtime/op/attrs/attr_kind.h"

namespace sherd {

struct ScalarAttrs {  ///< a constant operand: add_scalar, mul_scalar, pow_scalar, ...
  double value = 0;
  static constexpr AttrField fields[] = {attr<&ScalarAttrs::value>("value").local()};
};
struct ClampAttrs {
  double low = 0, high = 0;
  static constexpr AttrField fields[] = {attr<&ClampAttrs::low>("low"), attr<&ClampAttrs::high>("high")};
};
struct CastAttrs {
  DType dtype = DType::f32;
  static constexpr AttrField fields[] = {attr<&CastAttrs::dtype>("dtype")};
};

}  // namespace sherd
