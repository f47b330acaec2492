#pragma once
#include "nn/layers/linear.h"

namespace sherd::nn {

/// Causal self-attention. x [B, T, D] -> [B, T, D] with D = heads x K.
class Attention : public Layer<Attention>, public Shardable {
 public:
  struct Options {
    std::int64_t width = 0, heads = 0, kv_heads = 0;  ///< kv_heads divides heads; fewer = grouped queries
    bool bias = false;
    std::optional<double> rope_theta{};  ///< rotary positions, or none
    Init init = Init::normal(0.02), output_init = Init::normal(0.02);
  };
  explicit Attention(const Options& options);
  Tensor forward(const Tensor& x);
  const Options& options() const { return options_; }
  Roles roles() const override { return {.heads = options_.heads, .kv_heads = options_.kv_heads}; }

  Linear &wq, &wk, &wv, &wo;

 private:
  const Options options_;
};

}  // namespace sherd::nn
