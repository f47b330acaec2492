#pragma once
// Attributes of products of the rows of several leaves of a batch (autograd/leaves.h).
#include <cstdint>

#include "runtime/op/attrs/attr_kind.h"

namespace sherd {

struct LeafAttrs {
  std::int64_t leaves = 1;  ///< equal parts of dim 0, neighbours of each other
  static constexpr AttrField fields[] = {attr<&LeafAttrs::leaves>("leaves")};
};

}  // namespace sherd
