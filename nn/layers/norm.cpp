#include "nn/layers/norm.h"

#include "runtime/op/rows/ops.h"

namespace sherd::nn {

LayerNorm::LayerNorm(std::int64_t width, bool with_bias, double eps)
    : weight(add_parameter("weight", {width}, Init::ones())), eps_(eps) {
  if (with_bias) bias = &add_parameter("bias", {width}, Init::zeros());
}

Tensor LayerNorm::forward(const Tensor& x) { return layer_norm(x, weight, bias ? bias->value() : Tensor(), eps_); }

RmsNorm::RmsNorm(std::int64_t width, double eps) : weight(add_parameter("weight", {width}, Init::ones())), eps_(eps) {}

Tensor RmsNorm::forward(const Tensor& x) { return rms_norm(x, weight, eps_); }

}  // namespace sherd::nn
