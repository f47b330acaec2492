#pragma once
#include "nn/layers/attention.h"
#include "nn/layers/mlp.h"
#include "nn/layers/norm.h"

namespace sherd::nn {

struct LlamaConfig;

class LlamaBlock : public Layer<LlamaBlock> {
 public:
  explicit LlamaBlock(const LlamaConfig& config);
  Tensor forward(const Tensor& x);  ///< [B, T, D] -> [B, T, D]

  RmsNorm& attn_norm;
  Attention& attn;
  RmsNorm& mlp_norm;
  SwiGluMlp& mlp;
};

}  // namespace sherd::nn
