#include "nn/layers/linear.h"

#include "runtime/op/rows/ops.h"

namespace sherd::nn {

Linear::Linear(std::int64_t in, std::int64_t out, const Options& options)
    : weight(add_parameter("weight", {out, in},
                           options.init.value_or(Init::uniform(1 / std::sqrt(static_cast<double>(in)))))) {
  if (!options.bias) return;
  // PyTorch's bias bound goes with its default weight; models that choose their own weights start biases at zero.
  const Init start = options.init ? Init::zeros() : Init::uniform(1 / std::sqrt(static_cast<double>(in)));
  bias = &add_parameter("bias", {out}, start);
}

Tensor Linear::forward(const Tensor& x) { return linear(x, weight, bias ? bias->value() : Tensor()); }

}  // namespace sherd::nn
