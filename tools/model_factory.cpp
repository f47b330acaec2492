#include "tools/model_factory.h"

#include "nn/models/gpt.h"
#include "nn/models/llama.h"

namespace sherd {

std::unique_ptr<nn::LanguageModel> make_model(const TrainConfig::Model& c, std::int64_t vocabulary) {
  if (c.style == "gpt2") {
    nn::GptConfig g;
    g.vocabulary = vocabulary;
    g.tokens = c.sequence;
    g.layers = c.layers;
    g.heads = c.heads;
    g.width = c.width;
    g.hidden = c.hidden;
    g.bias = c.bias;
    g.gelu = c.gelu == "tanh" ? GeluKind::tanh : GeluKind::erf;
    g.tied_head = c.tied_head;
    g.dropout = c.dropout;
    g.norm_eps = c.norm_eps;
    g.init_std = c.init_std;
    g.scaled_residual_init = c.scaled_residual_init;
    return std::make_unique<nn::Gpt>(g);
  }
  nn::LlamaConfig l;
  l.vocabulary = vocabulary;
  l.tokens = c.sequence;
  l.layers = c.layers;
  l.heads = c.heads;
  l.kv_heads = c.kv_heads;
  l.width = c.width;
  l.hidden = c.hidden;
  l.rope_theta = c.rope_theta;
  l.tied_head = c.tied_head;
  l.norm_eps = c.norm_eps;
  l.init_std = c.init_std;
  l.scaled_residual_init = c.scaled_residual_init;
  return std::make_unique<nn::Llama>(l);
}

}  // namespace sherd
