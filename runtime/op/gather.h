#pragma once
// Attributes of the rows that take elements by an index per element, and of topk; their registration.
#include "runtime/op/op.h"

namespace sherd {

/// gather_backward: the tensor that was gathered from.
struct GatherBackwardAttrs {
  int dim = 0;
  Shape shape;
  void visit(AttrVisitor& v) const {
    v.field("dim", dim);
    v.field("shape", shape);
  }
};
struct TopKAttrs {
  std::int64_t k = 1;
  int dim = 0;
  void visit(AttrVisitor& v) const {
    v.field("k", k);
    v.field("dim", dim);
  }
};

/// Part of register_index.
void register_gather(OpTable& table);

}  // namespace sherd
