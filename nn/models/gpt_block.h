#pragma once
#include "nn/layers/attention.h"
#include "nn/layers/dropout.h"
#include "nn/layers/mlp.h"
#include "nn/layers/norm.h"

namespace sherd::nn {

struct GptConfig;

class GptBlock : public Layer<GptBlock> {
 public:
  explicit GptBlock(const GptConfig& config);
  Tensor forward(const Tensor& x);  ///< [B, T, D] -> [B, T, D]

  LayerNorm& attn_norm;
  Attention& attn;
  LayerNorm& mlp_norm;
  GeluMlp& mlp;

 private:
  Dropout& dropout_;
};

}  // namespace sherd::nn
