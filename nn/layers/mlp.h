#pragma once
#include "nn/layers/linear.h"
#include "runtime/op/rows/ops.h"

namespace sherd::nn {

/// down(gelu(up(x))): GPT-2's feed-forward.
class GeluMlp : public Layer<GeluMlp> {
 public:
  struct Options {
    std::int64_t width = 0, hidden = 0;
    bool bias = true;
    bool tanh_gelu = false;  ///< gelu_tanh() in place of gelu()
    Init init = Init::normal(0.02), output_init = Init::normal(0.02);
  };
  explicit GeluMlp(const Options& options);
  Tensor forward(const Tensor& x);  ///< [..., width] -> [..., width]

  Linear &up, &down;

 private:
  const bool tanh_gelu_;
};

/// w2(silu(w1(x)) * w3(x)): Llama's feed-forward.
class SwiGluMlp : public Layer<SwiGluMlp> {
 public:
  struct Options {
    std::int64_t width = 0, hidden = 0;
    Init init = Init::normal(0.02), output_init = Init::normal(0.02);
  };
  explicit SwiGluMlp(const Options& options);
  Tensor forward(const Tensor& x);

  Linear &w1, &w3, &w2;  ///< gate, up, down
};

}  // namespace sherd::nn
