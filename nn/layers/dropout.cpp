#include "nn/layers/dropout.h"

#include "runtime/exec/context.h"
#include "runtime/op/ops.h"

namespace sherd::nn {

Dropout::Dropout(double p) : p_(p) { check(p >= 0 && p < 1, "dropout probability must be in [0, 1), got {}", p); }

Tensor Dropout::forward(const Tensor& x) {
  if (!training() || p_ == 0) return x;
  const RankContext& context = RankContext::current();
  const std::uint64_t key = random_key(context.seed, path(), "dropout");
  return dropout(x, p_, key, calls_.next(x.device()), context.data_coordinate * x.numel());
}

}  // namespace sherd::nn
