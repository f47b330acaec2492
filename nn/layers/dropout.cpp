#include "nn/layers/dropout.h"

#include "nn/batch_part.h"
#include "runtime/op/rows/ops.h"

namespace sherd::nn {

Dropout::Dropout(double p) : p_(p) {
  check(p >= 0 && p < 1, "dropout probability must be in [0, 1), got {}", p);
  if (p > 0) calls_.take_place();
}

Tensor Dropout::forward(const Tensor& x) {
  if (!training() || p_ == 0) return x;
  const BatchElements part = batch_elements(*this, x);
  const std::uint64_t key = random_key(drawn_by().seed, path(), "dropout");
  return dropout(x, p_, key, calls_.next(x.device()), part.first, part.all);
}

}  // namespace sherd::nn
