#pragma once
#include "nn/layers/attention.h"
#include "nn/layers/dropout.h"
#include "nn/layers/embedding.h"
#include "nn/layers/mlp.h"
#include "nn/layers/norm.h"
#include "nn/models/language_model.h"
#include "nn/module_list.h"

namespace sherd::nn {

/// GPT-2: learned positions, pre-norm blocks, GELU, head tied to the token embedding.
class Gpt : public LanguageModel {
 public:
  struct Config {
    std::int64_t vocabulary = 0, tokens = 0;  ///< tokens: longest sequence
    std::int64_t layers = 0, heads = 0, width = 0;
    std::int64_t hidden = 0;  ///< feed-forward width; 4 x width when 0
    bool bias = true;         ///< in linears and norms
    bool tanh_gelu = false;   ///< GELU by its approximation with tanh
    bool tied_head = true;
    double dropout = 0;  ///< on embeddings and on the blocks' residual updates
    double norm_eps = 1e-5;
    double init_std = 0.02;
    bool scaled_residual_init = true;  ///< residual projections start at init_std / sqrt(2 x layers)
  };

  class Block : public Layer<Block> {
   public:
    explicit Block(const Config& config);
    Tensor forward(const Tensor& x);  ///< [B, T, D] -> [B, T, D]

    LayerNorm& attn_norm;
    Attention& attn;
    LayerNorm& mlp_norm;
    GeluMlp& mlp;

   private:
    Dropout& dropout_;
  };

  explicit Gpt(const Config& config);
  Tensor forward(const Tensor& tokens, const Tensor& targets) override;
  std::vector<Module*> blocks() override { return {blocks_.items().begin(), blocks_.items().end()}; }
  std::int64_t max_tokens() const override { return config_.tokens; }
  std::string why_leaves_apart() const override { return ""; }

 private:
  Config config_;
  Embedding &tok_, &pos_;
  Dropout& dropout_;
  ModuleList<Block>& blocks_;
  LayerNorm& norm_;
  LmHead& head_;
};

}  // namespace sherd::nn
