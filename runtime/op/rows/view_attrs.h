#pragma once
// Attributes of rows that move elements, and of all rows along one dim.
#include <cstdint>

#include "runtime/op/attrs/attr_kind.h"

namespace sherd {

struct DimAttrs {  ///< softmax, cat, ...
  int dim = 0;
  static constexpr AttrField fields[] = {attr<&DimAttrs::dim>("dim")};
};
struct ShapeAttrs {  ///< view (reshape), expand
  Shape shape;
  static constexpr AttrField fields[] = {attr<&ShapeAttrs::shape>("shape")};
};
struct PermuteAttrs {
  Dims order;
  static constexpr AttrField fields[] = {attr<&PermuteAttrs::order>("order")};
};
struct NarrowAttrs {  ///< `length` elements of one dim, from `start` on
  int dim = 0;
  std::int64_t start = 0, length = 0;
  static constexpr AttrField fields[] = {attr<&NarrowAttrs::dim>("dim"), attr<&NarrowAttrs::start>("start").local(),
                                         attr<&NarrowAttrs::length>("length").local()};
};
/// pad_to: the input as a slice of a larger dim, zero elsewhere; the gradient of narrow.
struct PadToAttrs {
  int dim = 0;
  std::int64_t start = 0, size = 0;  ///< position of the slice and size of the larger dim
  static constexpr AttrField fields[] = {attr<&PadToAttrs::dim>("dim"), attr<&PadToAttrs::start>("start").local(),
                                         attr<&PadToAttrs::size>("size").local()};
};

}  // namespace sherd
