#pragma once
#include "runtime/op/attrs/attr_kind.h"

namespace sherd {

struct WaitAttrs {
  bool to_write = false;  ///< for all queues that use the bytes; else for the one that writes them
  static constexpr AttrField fields[] = {attr<&WaitAttrs::to_write>("to_write").optional()};
};

}  // namespace sherd
