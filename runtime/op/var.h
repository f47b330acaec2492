#pragma once
// Attributes of the row var: those of any reduction, and what the number of elements is lessened by.
#include "runtime/op/attr_types.h"

namespace sherd {

struct VarAttrs : ReduceAttrs {
  int correction = 1;
  void visit(AttrVisitor& v) const {
    ReduceAttrs::visit(v);
    v.field("correction", correction);
  }
};

}  // namespace sherd
