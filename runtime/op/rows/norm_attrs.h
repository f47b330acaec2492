#pragma once
// Attributes of layer_norm and rms_norm.
#include "runtime/op/attrs/attr_kind.h"

namespace sherd {

struct NormAttrs {
  double eps = 1e-5;
  static constexpr AttrField fields[] = {attr<&NormAttrs::eps>("eps")};
};

}  // namespace sherd
