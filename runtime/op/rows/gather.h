#pragma once
// Attributes of the rows that take elements by an index per element, and of topk; their registration.
#include "runtime/op/core/op.h"

namespace sherd {

/// gather_backward: the tensor that was gathered from.
struct GatherBackwardAttrs {
  int dim = 0;
  Shape shape;
  static constexpr AttrField fields[] = {attr<&GatherBackwardAttrs::dim>("dim"),
                                         attr<&GatherBackwardAttrs::shape>("shape")};
};
struct TopKAttrs {
  std::int64_t k = 1;
  int dim = 0;
  static constexpr AttrField fields[] = {attr<&TopKAttrs::k>("k"), attr<&TopKAttrs::dim>("dim")};
};

/// Part of register_index.
void register_gather(OpTable& table);

}  // namespace sherd
