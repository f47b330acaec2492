#include "tools/train/model_factory.h"

#include <algorithm>

#include "runtime/tensor/error.h"

namespace sherd::train {

namespace {

TrainConfig::Model section_of(const nn::Gpt::Config& c) {
  return {.style = "gpt2",
          .layers = c.layers,
          .heads = c.heads,
          .kv_heads = c.heads,
          .width = c.width,
          .hidden = c.hidden,
          .positions = c.tokens,
          .vocabulary = c.vocabulary,
          .bias = c.bias,
          .gelu = c.tanh_gelu ? "tanh" : "erf",
          .tied_head = c.tied_head,
          .norm_eps = c.norm_eps};
}

TrainConfig::Model section_of(const nn::Llama::Config& c) {
  return {.style = "llama",
          .layers = c.layers,
          .heads = c.heads,
          .kv_heads = c.kv_heads,
          .width = c.width,
          .hidden = c.hidden,
          .positions = c.tokens,
          .vocabulary = c.vocabulary,
          .tied_head = c.tied_head,
          .rope_theta = c.rope_theta,
          .norm_eps = c.norm_eps};
}

}  // namespace

nn::LanguageModelConfig model_config(const TrainConfig::Model& m, std::int64_t data_vocabulary) {
  check(m.vocabulary == 0 || m.vocabulary >= data_vocabulary,
        "model.vocabulary = {} is smaller than the data's vocabulary of {} tokens", m.vocabulary, data_vocabulary);
  const std::int64_t vocabulary = m.vocabulary ? m.vocabulary : data_vocabulary;
  const std::int64_t tokens = m.positions ? m.positions : m.sequence;
  if (m.style == "gpt2")
    return nn::Gpt::Config{.vocabulary = vocabulary,
                           .tokens = tokens,
                           .layers = m.layers,
                           .heads = m.heads,
                           .width = m.width,
                           .hidden = m.hidden,
                           .bias = m.bias,
                           .tanh_gelu = m.gelu == "tanh",
                           .tied_head = m.tied_head,
                           .dropout = m.dropout,
                           .norm_eps = m.norm_eps,
                           .init_std = m.init_std,
                           .scaled_residual_init = m.scaled_residual_init};
  return nn::Llama::Config{.vocabulary = vocabulary,
                           .tokens = tokens,
                           .layers = m.layers,
                           .heads = m.heads,
                           .kv_heads = m.kv_heads,
                           .width = m.width,
                           .hidden = m.hidden,
                           .rope_theta = m.rope_theta,
                           .tied_head = m.tied_head,
                           .norm_eps = m.norm_eps,
                           .init_std = m.init_std,
                           .scaled_residual_init = m.scaled_residual_init};
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
