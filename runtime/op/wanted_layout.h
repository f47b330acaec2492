#pragma once
// A word from the caller of ops to the dist layer: how the result will have to lie. Where a result could lie in several
// ways at the same price, it lies so at once; the gradient of a cut table is then made in parts, not made whole and cut.
#include "runtime/tensor/distributed.h"

namespace sherd {

/// For the calls of a scope on this thread.
class WantedLayout {
 public:
  explicit WantedLayout(const Distributed* layout);
  ~WantedLayout();
  WantedLayout(const WantedLayout&) = delete;
  WantedLayout& operator=(const WantedLayout&) = delete;
  /// Null: nothing is wanted.
  static const Distributed* current();

 private:
  const Distributed* outer_;
};

}  // namespace sherd
