#include "nn/models/gpt.h"

#include <cmath>

namespace sherd::nn {

namespace {
Init residual_init(const Gpt::Config& c) {
  return Init::normal(c.scaled_residual_init ? c.init_std / std::sqrt(2.0 * static_cast<double>(c.layers))
                                             : c.init_std);
}
Attention::Options attention_options(const Gpt::Config& c) {
  return {.width = c.width,
          .heads = c.heads,
          .kv_heads = c.heads,
          .bias = c.bias,
          .rope_theta = {},
          .init = Init::normal(c.init_std),
          .output_init = residual_init(c)};
}
GeluMlp::Options mlp_options(const Gpt::Config& c) {
  return {.width = c.width,
          .hidden = c.hidden ? c.hidden : 4 * c.width,
          .bias = c.bias,
          .tanh_gelu = c.tanh_gelu,
          .init = Init::normal(c.init_std),
          .output_init = residual_init(c)};
}
}  // namespace

Gpt::Block::Block(const Gpt::Config& c)
    : attn_norm(add<LayerNorm>("attn_norm", c.width, c.bias, c.norm_eps)),
      attn(add<Attention>("attn", attention_options(c))),
      mlp_norm(add<LayerNorm>("mlp_norm", c.width, c.bias, c.norm_eps)),
      mlp(add<GeluMlp>("mlp", mlp_options(c))),
      dropout_(add<Dropout>("dropout", c.dropout)) {}

Tensor Gpt::Block::forward(const Tensor& x) {
  Tensor h = x + dropout_(attn(attn_norm(x)));
  return h + dropout_(mlp(mlp_norm(h)));
}

Gpt::Gpt(const Gpt::Config& c)
    : config_(c),
      tok_(add<Embedding>("tok", c.vocabulary, c.width, Init::normal(c.init_std))),
      pos_(add<Embedding>("pos", c.tokens, c.width, Init::normal(c.init_std))),
      dropout_(add<Dropout>("dropout", c.dropout)),
      blocks_(add<ModuleList<Block>>("blocks")),
      norm_(add<LayerNorm>("norm", c.width, c.bias, c.norm_eps)),
      head_(c.tied_head ? add<LmHead>("head", tok_.weight)
                        : add<LmHead>("head", c.vocabulary, c.width, Init::normal(c.init_std))) {
  for (std::int64_t i = 0; i < c.layers; ++i) blocks_.append(c);
}

Tensor Gpt::forward(const Tensor& tokens, const Tensor& targets) {
  const std::int64_t t = tokens.size(1);
  check(t <= config_.tokens, "{} tokens in a sequence, the model has {} positions", t, config_.tokens);
  Tensor x = tok_(tokens) + pos_(arange(t, DType::i64, tokens.device()));  // [B, T, D]
  x = dropout_(x);
  for (Block* block : blocks_.items()) x = (*block)(x);
  return head_(norm_(x), targets);
}

}  // namespace sherd::nn
