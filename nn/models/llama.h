#pragma once
#include "nn/layers/embedding.h"
#include "nn/models/language_model.h"
#include "nn/models/llama_block.h"
#include "nn/module_list.h"

namespace sherd::nn {

struct LlamaConfig {
  std::int64_t vocabulary = 0, tokens = 0;  ///< tokens: longest sequence
  std::int64_t layers = 0, heads = 0, kv_heads = 0, width = 0;
  std::int64_t hidden = 0;  ///< feed-forward width
  double rope_theta = 10000;
  bool tied_head = false;
  double norm_eps = 1e-5;
  double init_std = 0.02;
  bool scaled_residual_init = true;  ///< residual projections start at init_std / sqrt(2 x layers)
};

/// Llama: rotary positions, RMS norm, grouped queries, SwiGLU.
class Llama : public LanguageModel {
 public:
  explicit Llama(const LlamaConfig& config);
  Tensor forward(const Tensor& tokens, const Tensor& targets) override;
  std::vector<Module*> blocks() override { return {blocks_.items().begin(), blocks_.items().end()}; }
  std::int64_t max_tokens() const override { return config_.tokens; }
  std::string why_leaves_apart() const override { return ""; }

 private:
  LlamaConfig config_;
  Embedding& tok_;
  ModuleList<LlamaBlock>& blocks_;
  RmsNorm& norm_;
  LmHead& head_;
};

}  // namespace sherd::nn
