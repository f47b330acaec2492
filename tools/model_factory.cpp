#include "tools/model_factory.h"

#include <algorithm>

#include "runtime/tensor/error.h"

namespace sherd {

namespace {

TrainConfig::Model section_of(const nn::GptConfig& c) {
  TrainConfig::Model m;
  m.style = "gpt2";
  m.vocabulary = c.vocabulary;
  m.positions = c.tokens;
  m.layers = c.layers;
  m.heads = m.kv_heads = c.heads;
  m.width = c.width;
  m.hidden = c.hidden;
  m.bias = c.bias;
  m.gelu = c.gelu == GeluKind::tanh ? "tanh" : "erf";
  m.tied_head = c.tied_head;
  m.norm_eps = c.norm_eps;
  return m;
}

TrainConfig::Model section_of(const nn::LlamaConfig& c) {
  TrainConfig::Model m;
  m.style = "llama";
  m.vocabulary = c.vocabulary;
  m.positions = c.tokens;
  m.layers = c.layers;
  m.heads = c.heads;
  m.kv_heads = c.kv_heads;
  m.width = c.width;
  m.hidden = c.hidden;
  m.rope_theta = c.rope_theta;
  m.tied_head = c.tied_head;
  m.norm_eps = c.norm_eps;
  return m;
}

}  // namespace

nn::LanguageModelConfig model_config(const TrainConfig::Model& c, std::int64_t data_vocabulary) {
  check(c.vocabulary == 0 || c.vocabulary >= data_vocabulary,
        "model.vocabulary = {} is smaller than the data's vocabulary of {} tokens", c.vocabulary, data_vocabulary);
  const std::int64_t vocabulary = c.vocabulary ? c.vocabulary : data_vocabulary;
  if (c.style == "gpt2") {
    nn::GptConfig g;
    g.vocabulary = vocabulary;
    g.tokens = c.positions ? c.positions : c.sequence;
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
    return g;
  }
  nn::LlamaConfig l;
  l.vocabulary = vocabulary;
  l.tokens = c.positions ? c.positions : c.sequence;
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
  return l;
}

TrainConfig::Model model_section(const nn::LanguageModelConfig& config) {
  TrainConfig::Model section = std::visit([](const auto& c) { return section_of(c); }, config);
  section.sequence = std::min(section.sequence, section.positions);
  return section;
}

std::unique_ptr<nn::LanguageModel> make_model(const TrainConfig::Model& section, std::int64_t data_vocabulary) {
  return nn::make_language_model(model_config(section, data_vocabulary));
}

}  // namespace sherd
