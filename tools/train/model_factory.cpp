#include "tools/train/model_factory.h"

#include <algorithm>

#include "runtime/tensor/error.h"

namespace sherd::train {

namespace {

// What sections and configs of both styles call by one name.
template <class From, class To>
void copy_sizes(const From& from, To& to) {
  to.vocabulary = from.vocabulary;
  to.layers = from.layers;
  to.heads = from.heads;
  to.width = from.width;
  to.hidden = from.hidden;
  to.tied_head = from.tied_head;
  to.norm_eps = from.norm_eps;
}

TrainConfig::Model section_of(const nn::GptConfig& c) {
  TrainConfig::Model m;
  copy_sizes(c, m);
  m.style = "gpt2";
  m.positions = c.tokens;
  m.kv_heads = c.heads;
  m.bias = c.bias;
  m.gelu = c.gelu == GeluKind::tanh ? "tanh" : "erf";
  return m;
}

TrainConfig::Model section_of(const nn::LlamaConfig& c) {
  TrainConfig::Model m;
  copy_sizes(c, m);
  m.style = "llama";
  m.positions = c.tokens;
  m.kv_heads = c.kv_heads;
  m.rope_theta = c.rope_theta;
  return m;
}

// A config's parts that a section says for both styles.
template <class Config>
Config config_of(const TrainConfig::Model& m, std::int64_t vocabulary) {
  Config c;
  copy_sizes(m, c);
  c.vocabulary = vocabulary;
  c.tokens = m.positions ? m.positions : m.sequence;
  c.init_std = m.init_std;
  c.scaled_residual_init = m.scaled_residual_init;
  return c;
}

}  // namespace

nn::LanguageModelConfig model_config(const TrainConfig::Model& m, std::int64_t data_vocabulary) {
  check(m.vocabulary == 0 || m.vocabulary >= data_vocabulary,
        "model.vocabulary = {} is smaller than the data's vocabulary of {} tokens", m.vocabulary, data_vocabulary);
  const std::int64_t vocabulary = m.vocabulary ? m.vocabulary : data_vocabulary;
  if (m.style == "gpt2") {
    auto gpt = config_of<nn::GptConfig>(m, vocabulary);
    gpt.bias = m.bias;
    gpt.gelu = m.gelu == "tanh" ? GeluKind::tanh : GeluKind::erf;
    gpt.dropout = m.dropout;
    return gpt;
  }
  auto llama = config_of<nn::LlamaConfig>(m, vocabulary);
  llama.kv_heads = m.kv_heads;
  llama.rope_theta = m.rope_theta;
  return llama;
}

TrainConfig::Model model_section(const nn::LanguageModelConfig& config) {
  TrainConfig::Model section = std::visit([](const auto& c) { return section_of(c); }, config);
  section.sequence = std::min(section.sequence, section.positions);
  return section;
}

std::unique_ptr<nn::LanguageModel> make_model(const TrainConfig::Model& section, std::int64_t data_vocabulary) {
  return nn::make_language_model(model_config(section, data_vocabulary));
}

}  // namespace sherd::train
