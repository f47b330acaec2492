#pragma once
// What reductions make of two elements, and what they begin with, for every device.
#include "runtime/op/rows/pointwise.h"

namespace sherd::folds {

/// Combines by `Op` of pointwise.h, from `kStart` on; the largest and the smallest begin with what gives way to any.
template <class Op, int kStart = 0>
struct Fold {
  template <class T>
  SHERD_HD static T identity() {
    using Limits = std::numeric_limits<T>;
    if constexpr (std::is_same_v<Op, pointwise::Maximum>) {
      return pointwise::Floating<T> ? -Limits::infinity() : Limits::lowest();
    } else if constexpr (std::is_same_v<Op, pointwise::Minimum>) {
      return pointwise::Floating<T> ? Limits::infinity() : Limits::max();
    } else {
      return T{kStart};
    }
  }
  template <class T>
  SHERD_HD static T combine(T a, T b) {
    return Op()(a, b);
  }
};
using Sum = Fold<pointwise::Add>;
using Product = Fold<pointwise::Mul, 1>;
using Largest = Fold<pointwise::Maximum>;
using Smallest = Fold<pointwise::Minimum>;
using Any = Fold<pointwise::LogicalOr>;
using All = Fold<pointwise::LogicalAnd, 1>;

}  // namespace sherd::folds
