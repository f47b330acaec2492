#pragma once
// Attributes of the row var: those of any reduction, and what the number of elements is lessened by.
#include "runtime/op/attr_types.h"

namespace sherd {

struct VarAttrs {
  ReduceAttrs reduce{};  ///< first: what serves all reductions reads it as ReduceAttrs
  int correction = 1;
  static constexpr AttrField fields[] = {attr<&VarAttrs::reduce>(), attr<&VarAttrs::correction>("correction")};
};

}  // namespace sherd
