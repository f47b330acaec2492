#pragma once
// A word from the caller of ops to the dist layer: how the result will have to lie. Where a result could lie in several
// ways at the same price, it lies so at once; the gradient of a cut table is then made in parts, not made whole and
// cut.
#include "runtime/op/distributed.h"

namespace sherd {

class Tensor;

/// For the calls of a scope on this thread.
class WantedLayout {
 public:
  /// `sum`, if any: a distributed tensor that the result is to be added to. A result that lies as it does may be added
  /// in place, and is `sum` then.
  explicit WantedLayout(const Distributed* layout, const Tensor* sum = nullptr);
  ~WantedLayout();
  WantedLayout(const WantedLayout&) = delete;
  WantedLayout& operator=(const WantedLayout&) = delete;
  /// Null: nothing is wanted.
  static const Distributed* current();
  static const Tensor* sum();

 private:
  const Distributed* outer_;
  const Tensor* outer_sum_;
};

}  // namespace sherd
