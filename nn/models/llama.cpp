#include "nn/models/llama.h"

#include <cmath>

#include "runtime/op/rows/ops.h"

namespace sherd::nn {

namespace {
Init residual_init(const Llama::Config& c) {
  return Init::normal(c.scaled_residual_init ? c.init_std / std::sqrt(2.0 * static_cast<double>(c.layers))
                                             : c.init_std);
}
Attention::Options attention_options(const Llama::Config& c) {
  return {.width = c.width,
          .heads = c.heads,
          .kv_heads = c.kv_heads ? c.kv_heads : c.heads,
          .bias = false,
          .rope_theta = c.rope_theta,
          .init = Init::normal(c.init_std),
          .output_init = residual_init(c)};
}
}  // namespace

Llama::Block::Block(const Llama::Config& c)
    : attn_norm(add<RmsNorm>("attn_norm", c.width, c.norm_eps)),
      attn(add<Attention>("attn", attention_options(c))),
      mlp_norm(add<RmsNorm>("mlp_norm", c.width, c.norm_eps)),
      mlp(add<SwiGluMlp>("mlp", SwiGluMlp::Options{c.width, c.hidden, Init::normal(c.init_std), residual_init(c)})) {}

Tensor Llama::Block::forward(const Tensor& x) {
  Tensor h = x + attn(attn_norm(x));
  return h + mlp(mlp_norm(h));
}

Llama::Llama(const Llama::Config& c)
    : config_(c),
      tok_(add<Embedding>("tok", c.vocabulary, c.width, Init::normal(c.init_std))),
      blocks_(add<ModuleList<Block>>("blocks")),
      norm_(add<RmsNorm>("norm", c.width, c.norm_eps)),
      head_(c.tied_head ? add<LmHead>("head", tok_.weight)
                        : add<LmHead>("head", c.vocabulary, c.width, Init::normal(c.init_std))) {
  for (std::int64_t i = 0; i < c.layers; ++i) blocks_.append(c);
}

Tensor Llama::forward(const Tensor& tokens, const Tensor& targets) {
  const std::int64_t t = tokens.size(1);
  check(t <= config_.tokens, "{} tokens in a sequence, the model was made for {}", t, config_.tokens);
  Tensor x = tok_(tokens);  // [B, T, D]
  for (Block* block : blocks_.items()) x = (*block)(x);
  return head_(norm_(x), targets);
}

}  // namespace sherd::nn
