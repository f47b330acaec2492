#pragma once
#include "nn/module.h"

namespace sherd::nn {

/// (x - mean) / sqrt(variance + eps) over the last dim, times weight [width], plus bias [width] unless left out.
class LayerNorm : public Layer<LayerNorm> {
 public:
  explicit LayerNorm(std::int64_t width, bool with_bias = true, double eps = 1e-5);
  Tensor forward(const Tensor& x);

  Parameter& weight;
  Parameter* bias = nullptr;

 private:
  const double eps_;
};

/// x / sqrt(mean of squares + eps) over the last dim, times weight [width].
class RmsNorm : public Layer<RmsNorm> {
 public:
  explicit RmsNorm(std::int64_t width, double eps = 1e-5);
  Tensor forward(const Tensor& x);

  Parameter& weight;

 private:
  const double eps_;
};

}  // namespace sherd::nn
